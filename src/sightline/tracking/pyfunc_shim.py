"""What MLflow runs when it loads a model of ours: this file, copied as it is, and the installed Sightline."""

from mlflow.models import set_model

from sightline.tracking.pyfunc_model import PyfuncModel

set_model(PyfuncModel())

"""How good a model is: COCO's figures for detectors, accuracy for classifiers, from any number of workers, exactly."""

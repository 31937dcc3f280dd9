"""What Streamlit runs for every visitor and every click: the frame around the pages."""

import streamlit as st

from sightline.app.shown import telling, workspace
from sightline.app.views import compare, data, detect, detections, runs

PAGES = (
    st.Page(detect.page, title="Detect", icon=":material/center_focus_strong:", default=True),
    st.Page(detections.page, title="Detections", icon=":material/grid_view:", url_path="detections"),
    st.Page(compare.page, title="Compare", icon=":material/compare:", url_path="compare"),
    st.Page(runs.page, title="Runs", icon=":material/monitoring:", url_path="runs"),
    st.Page(data.page, title="Data", icon=":material/dataset:", url_path="data"),
)

st.set_page_config(
    page_title="Sightline", page_icon=":material/center_focus_strong:", layout="wide", initial_sidebar_state=330
)
st.html("<style>.stMainBlockContainer {padding: 3.5rem 2rem 2rem}</style>")
chosen = st.navigation(PAGES, position="top")
with telling():
    chosen.run()
st.sidebar.caption("workspace")
st.sidebar.text(str(workspace().root))

"""The app: pages in a browser over what the API gives. A page is one file in `views` and one line in `main`."""

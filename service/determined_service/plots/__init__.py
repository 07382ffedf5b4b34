"""The picture of a search: one HTML page that needs no network.

``render`` starts ``python -m determined_service.plots`` for each page, so that the libraries for drawing
(Plotly, Optuna: 200 MB) are never in the service's memory, and a large experiment is never read in its
event loop. In that process :mod:`.queries` reads rows into :mod:`.model`; one module per section makes a
:class:`.section.PlotSection`; :mod:`.page` puts them together.
"""

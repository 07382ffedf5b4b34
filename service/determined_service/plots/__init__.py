"""The picture of a search: one HTML page that needs no network.

``render`` starts ``python -m determined_service.plots`` for each page, so that what drawing needs
(Plotly, Optuna: 200 MB) is never in the service's memory and the reading of a large experiment never
in its event loop. There: :mod:`.queries` reads rows into :mod:`.model`; one module per section makes
a :class:`.section.Section`; :mod:`.page` puts them together.
"""

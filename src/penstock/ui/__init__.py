"""The web page: schemas, datasets, pipelines and queries for people, by the REST API alone."""

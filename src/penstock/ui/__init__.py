"""Web UI: pages for schemas, datasets, pipelines and queries. The pages use the REST API only."""

pytest_plugins = ["cluster_fixtures", "engine_fixtures"]

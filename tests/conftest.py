from hypothesis import settings

pytest_plugins = ["cluster_fixtures", "engine_fixtures"]

# How long one example takes says more about the machine than about the code.
settings.register_profile("kvquota", deadline=None)
settings.load_profile("kvquota")

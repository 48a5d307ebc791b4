import os

from hypothesis import settings

pytest_plugins = ["cluster_fixtures", "engine_fixtures", "parallel_runs"]

# How long one example takes says more about the machine than about the code. The same examples in every run, so that a
# red run is red again; `KVQUOTA_PROFILE=long` looks for new ones, and so does `fuzz`, for which `make fuzz` names the
# seed of each round. The number of `fuzz` is what the fuzzers get through in about ten seconds.
settings.register_profile("short", deadline=None, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=2_000, print_blob=True)
settings.register_profile("fuzz", deadline=None, max_examples=100, print_blob=True)
settings.load_profile(os.environ.get("KVQUOTA_PROFILE", "short"))

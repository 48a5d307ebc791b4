"""From quotas as people write them to blocks on each pod. Pure."""

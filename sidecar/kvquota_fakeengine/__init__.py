"""An engine without a model: real accounting of KV blocks behind vLLM's HTTP routes, and faults on demand.

It stands in for vLLM wherever a graphics card would be a waste: in the demo, in tests, in a cluster without cards.
What it answers is meaningless text; how many blocks it holds for whom, who waits, who is preempted and what its
metrics say is what vLLM 0.32 would do. One suite of tests holds it against the real one.
"""

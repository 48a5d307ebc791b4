"""What becomes of a pod that asks to be put under quota: from the pod of an admission request to the changed one. Pure.

`asking` says which pool a pod belongs to, `injecting` changes it, `admission` speaks the API server's protocol.
"""

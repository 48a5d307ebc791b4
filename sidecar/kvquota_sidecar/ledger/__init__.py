"""The books: who holds how many KV blocks of one engine, and who may take more. Pure.

Here: all state of requests and tenants, behind `books.Books`; `asking` has the values that go in and out. The rules
themselves are in `admission`, which keeps nothing.
"""

module kvquota.dev/tests/tools/pause

go 1.24

//go:build tools

// Package tools names the programs that the tests run, so that `go mod tidy` keeps their requirements.
package tools

import _ "helm.sh/helm/v4/cmd/helm"

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/cmd/dsmoe/internal/cli"
)

// TestDemo does what the demo says, in a directory whose name a shell would take apart: the first verification
// passes, with every weight exercised and all hashes those of the pack; after the edit the second names the cause.
func TestDemo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"-it's a/", "plain"} {
		out, err := paste(dir, cli.CommandLine([]string{"dsmoe", "demo", "--json", "--", name}))
		require.NoError(t, err, out)
		var d demo
		require.NoError(t, json.Unmarshal([]byte(out), &d))
		require.Len(t, d.Commands, 3)
		out, err = paste(dir, d.Commands[0]+" --hash")
		assert.NoError(t, err, out)
		assert.Contains(t, out, "PASS (32 of 32 experts, 3 of them by probes, 139 of 139 weights exercised)")
		out, err = paste(dir, d.Commands[1])
		require.NoError(t, err, out)
		out, err = paste(dir, d.Commands[2])
		assert.ErrorContains(t, err, "exit status 1")
		assert.Contains(t, out, "\ncause      norm-topk: ")
		out, err = paste(dir, cli.CommandLine([]string{"dsmoe", "demo", d.Path}))
		assert.ErrorContains(t, err, "exit status 2")
		assert.Equal(t, 1, strings.Count(out, "exists already"), out)
	}
	out, err := paste(dir, "dsmoe demo a b")
	assert.ErrorContains(t, err, "exit status 2")
	assert.Contains(t, out, "dsmoe: demo: want one DIR, but 2 given\n")
}

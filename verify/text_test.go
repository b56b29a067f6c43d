package verify_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/verify"
)

// TestTextIsPlain: a pack cannot forge lines of the report.
func TestTextIsPlain(t *testing.T) {
	t.Parallel()
	dir := rewritten(t, "v1-base/golden-f32", func(_ string, m map[string]any) {
		m["reference"].(map[string]any)["model"] = "x\x1b[2K\nverdict    PASS"
	})
	c, _ := open(t, "v1-base/golden-f32")
	var text strings.Builder
	require.NoError(t, run(t, c.Config, c, must(verify.OpenPack(dir)), verify.Options{}).WriteText(&text))
	require.NotContains(t, text.String(), "\x1b")
	require.Equal(t, 1, strings.Count(text.String(), "\nverdict"))
}

package verify

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/checkpoint"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// TestSampleOfAttention: a trial in which tokens depend on no later ones is tried on a token that is wrong and those before
// it; other trials are not.
func TestSampleOfAttention(t *testing.T) {
	t.Parallel()
	c, err := checkpoint.Open(filepath.Join("..", "fixtures", "v3", "checkpoint"))
	require.NoError(t, err)
	defer c.Close()
	golden, err := pack.Open(filepath.Join("..", "fixtures", "v3", "golden-f32"))
	require.NoError(t, err)
	wrong := *c.Config
	wrong.RoPE.RopeTheta *= 3
	e, err := jobOf(t, &wrong, c, golden, &Options{Mode: report.Local}).gather(t.Context())
	require.NoError(t, err)
	f, err := rerunFailure(t.Context(), e, *conclude(e.project()).FirstDivergence)
	require.NoError(t, err)
	require.Equal(t, "self_attn.o_proj.input", f.Kind)
	for _, test := range []struct{ causal, right bool }{{false, true}, {true, false}, {true, true}} {
		x := f.NewTrial()
		if x.Causal = test.causal; test.right {
			x.Config.RoPE.RopeTheta = c.Config.RoPE.RopeTheta
		}
		known, passes, err := f.Sample(t.Context(), x)
		require.NoError(t, err)
		require.Equal(t, []bool{test.causal, test.causal && test.right}, []bool{known, passes})
	}
}

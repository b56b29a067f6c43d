package verify

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/convert/checkpoint"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/report"
)

// TestNumbersTooSmallToShow_every: eps of norms and of streams so small beside what they are added to that nothing tells them
// from twice as much are listed; the reference's usual eps fails.
func TestNumbersTooSmallToShow_every(t *testing.T) {
	t.Parallel()
	for i, name := range []string{"v1-base", "v3", "v4"} {
		for j, d := range []tensor.DType{tensor.F32, tensor.BF16} {
			if i%2 != j && !configtest.Every(t) {
				continue
			}
			t.Run(fmt.Sprint(name, d), func(t *testing.T) {
				t.Parallel()
				src, err := checkpoint.Open(filepath.Join("..", "fixtures", name, "checkpoint"))
				require.NoError(t, err)
				defer src.Close()
				in := &model.Input{Batch: 1, Seq: 24}
				for i := range in.Seq {
					in.InputIDs = append(in.InputIDs, (i*37+11)%src.Config.VocabSize)
				}
				keys := []string{rmsNormEps}
				if src.Config.HyperConnections.HCMult > 0 {
					keys = append(keys, hcEps)
				}
				with := func(eps string) *config.Config {
					changed := map[string]jsontext.Value{}
					for _, key := range keys {
						changed[key] = jsontext.Value(eps)
					}
					c, err := src.Config.Override(changed)
					require.NoError(t, err)
					return c
				}
				golden := recorded(t, with("1e-12"), src, in, d)
				golden.Manifest.Partial = "few tokens"
				for _, eps := range []string{"1e-12", "2e-12", "5e-13"} {
					r, err := Run(context.Background(), with(eps), src, golden, Options{Undiagnosed: true})
					require.NoError(t, err)
					require.NotEqual(t, report.Fail, r.Verdict, "%s: %v", eps, r.FirstDivergence)
					said := map[string]string{}
					for _, u := range r.Coverage.Untold {
						said[u.Key] = u.Why
					}
					for _, key := range keys {
						require.Contains(t, said[key], "half", "%s %s", key, eps)
					}
				}
				r, err := Run(context.Background(), with("1e-6"), src, golden, Options{Undiagnosed: true})
				require.NoError(t, err)
				require.Equal(t, report.Fail, r.Verdict)
			})
		}
	}
}

// TestNormsThatThePackLacks: where the pack has no stage of a norm, eps shows in the stage behind it, and is not
// listed.
func TestNormsThatThePackLacks(t *testing.T) {
	t.Parallel()
	src, err := checkpoint.Open(filepath.Join("..", "fixtures", "v3", "checkpoint"))
	require.NoError(t, err)
	defer src.Close()
	in := &model.Input{Batch: 1, Seq: 24}
	for i := range in.Seq {
		in.InputIDs = append(in.InputIDs, (i*37+11)%src.Config.VocabSize)
	}
	golden := recorded(t, src.Config, src, in, tensor.F32)
	for name := range golden.Manifest.Tensors {
		if strings.HasSuffix(name, "norm.output") {
			delete(golden.Manifest.Tensors, name)
		}
	}
	r, err := Run(context.Background(), src.Config, src, golden, Options{Undiagnosed: true})
	require.NoError(t, err)
	require.NotEqual(t, report.Fail, r.Verdict)
	for _, u := range r.Coverage.Untold {
		require.NotEqual(t, rmsNormEps, u.Key)
	}
}

// TestBiasesInBlocks: a bias may be stored in blocks of GGUF, as any weight may.
func TestBiasesInBlocks(t *testing.T) {
	block := append([]byte{0, 0x3c}, slices.Repeat([]byte{3}, 32)...) // a scale of 1, and codes
	w := &model.Weight{Name: "bias", Tensor: tensor.Tensor{DType: tensor.Q8_0, Shape: []int{32}, Data: block}}
	twice := multiplied(w, 2)
	values, err := twice.Float32s(nil)
	require.NoError(t, err)
	require.Equal(t, slices.Repeat([]float32{6}, 32), values)
	require.Equal(t, w.Name, twice.Name)
}

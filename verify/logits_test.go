package verify

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/convert/checkpoint"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// wrongHead is a source in which a function changed the head.
type wrongHead struct {
	weights.Source
	name   string
	change func(values []float32)
}

// Tensor implements weights.Source.
func (w wrongHead) Tensor(name string) (tensor.Tensor, error) {
	t, err := w.Source.Tensor(name)
	if err != nil || name != w.name || w.change == nil {
		return t, err
	}
	values, err := t.Float32s(nil)
	w.change(values)
	changed := tensor.Tensor{DType: t.DType, Shape: t.Shape}
	for _, v := range values {
		if t.DType == tensor.BF16 {
			changed.Data = binary.LittleEndian.AppendUint16(changed.Data, uint16(math.Float32bits(v)>>16))
		} else {
			changed.Data = binary.LittleEndian.AppendUint32(changed.Data, math.Float32bits(v))
		}
	}
	return changed, err
}

// TestLogitsInBlocks_every: what a report says of the stages does not depend on how many logits are in memory at once.
func TestLogitsInBlocks_every(t *testing.T) {
	t.Parallel()
	nothing := func([]float32) {}
	for i, golden := range []string{"v1-base/golden-f32", "v1-base/golden-bf16", "v3-mtp/golden-f32", "v3-mtp-two/golden-bf16",
		"v1-rope-linear-tied-bias/golden-f32", "v32/golden-f32"} {
		if i%3 > 0 && !configtest.Every(t) {
			continue
		}
		for name, change := range map[string]func([]float32){
			"right":   nothing,
			"doubled": func(w []float32) { w[len(w)/3] = 2*w[len(w)/3] + 1 },
			"NaN":     func(w []float32) { w[5] = float32(math.NaN()) },
			"scaled": func(w []float32) {
				for i := range w {
					w[i] *= 1.5
				}
			},
			"infinite": func(w []float32) { w[0] = float32(math.Inf(1)) },
		} {
			if name != "right" && (i > 0 || name != "doubled" && name != "NaN") && !configtest.Every(t) {
				continue
			}
			t.Run(golden+" "+name, func(t *testing.T) {
				t.Parallel()
				for _, mode := range []report.Mode{report.Local, report.Chained} {
					want := documentOf(t, verifiedWith(t, golden, change, Options{Mode: mode, Undiagnosed: true}, 0))
					for _, rows := range []int{1, 7} {
						if (rows == 1) != (mode == report.Local) && !configtest.Every(t) {
							continue
						}
						got := documentOf(t, verifiedWith(t, golden, change, Options{Mode: mode, Undiagnosed: true}, rows))
						require.True(t, want == got, "%s, blocks of %d rows:\n%s", mode, rows, firstDifference(want, got))
					}
				}
				// The cause is read off the worst block.
				want, got := verifiedWith(t, golden, change, Options{}, 0), verifiedWith(t, golden, change, Options{}, 12)
				require.Equal(t, idsOf(want.Causes), idsOf(got.Causes))
				require.True(t, name != "right" || len(got.Causes) == 0)
			})
		}
	}
}

// TestLogitsOfAnotherShape: golden logits that have as many elements and no batch axis fail, however many are in memory
// at once.
func TestLogitsOfAnotherShape(t *testing.T) {
	t.Parallel()
	for _, rows := range []int{0, 7} {
		for _, mode := range []report.Mode{report.Local, report.Chained} {
			c, err := checkpoint.Open(filepath.Join("..", "fixtures", "v1-base", "checkpoint"))
			require.NoError(t, err)
			defer c.Close()
			p, err := pack.Open(filepath.Join("..", "fixtures", "v1-base", "golden-f32"))
			require.NoError(t, err)
			e := p.Manifest.Tensors["lm_head.output"]
			e.Shape = []int{e.Shape[0] * e.Shape[1], e.Shape[2]}
			p.Manifest.Tensors["lm_head.output"] = e
			r, err := Run(context.Background(), c.Config, c, p, Options{Mode: mode, block: rows * c.Config.VocabSize})
			require.NoError(t, err)
			require.Equal(t, report.Fail, r.Verdict)
			require.Equal(t, "lm_head.output", *r.FirstDivergence)
			require.Empty(t, r.Causes)
		}
	}
}

// verifiedWith is the report on a pack with a changed head, and so many rows of logits at once; 0 for all.
func verifiedWith(t *testing.T, golden string, change func([]float32), o Options, rows int) *report.Report {
	c, err := checkpoint.Open(filepath.Join("..", "fixtures", filepath.Dir(golden), "checkpoint"))
	require.NoError(t, err)
	defer c.Close()
	p, err := pack.Open(filepath.Join("..", "fixtures", golden))
	require.NoError(t, err)
	head := "lm_head.weight"
	if c.Config.TieWordEmbeddings {
		head = "model.embed_tokens.weight"
	}
	o.block = rows * c.Config.VocabSize
	r, err := Run(context.Background(), c.Config, wrongHead{c, head, change}, p, o)
	require.NoError(t, err)
	return r
}

// documentOf is a report as JSON.
func documentOf(t *testing.T, r *report.Report) string {
	text, err := json.MarshalIndent(r, "", " ")
	require.NoError(t, err)
	return string(text)
}

// idsOf lists what causes are.
func idsOf(causes []report.Cause) (ids []string) {
	for _, c := range causes {
		ids = append(ids, c.ID)
	}
	return ids
}

// firstDifference is the first line of two texts that differs.
func firstDifference(a, b string) string {
	other := strings.Split(b, "\n")
	for i, line := range strings.Split(a, "\n") {
		if i >= len(other) || line != other[i] {
			return line + "\n" + strings.Join(other[min(i, len(other)-1):min(i+1, len(other))], "")
		}
	}
	return ""
}

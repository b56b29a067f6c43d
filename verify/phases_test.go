package verify_test

import (
	"encoding/binary"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/model/synth"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// TestPhases_every: vLLM multiplies weights into queries and contexts in decode steps alone. Both ways are recognised, and what is
// wrong in the rows of one phase fails there.
func TestPhases_every(t *testing.T) {
	t.Parallel()
	file, err := os.Open(fixture("engines/served.json"))
	require.NoError(t, err)
	defer file.Close()
	c, err := config.Parse(file)
	require.NoError(t, err)
	const attended = "model.layers.0." + pack.Attended
	judge := func(change func(row int, decodes bool, values []float32)) *report.Report {
		p, err := pack.Open(fixture("engines/vllm-steps-bf16"))
		require.NoError(t, err)
		if change != nil {
			in, err := p.Input()
			require.NoError(t, err)
			values, err := p.Float32s(attended)
			require.NoError(t, err)
			x, width := tensor.Tensor{DType: tensor.BF16, Shape: p.Manifest.Tensors[attended].Shape}, p.Width(attended)
			for row, decodes := range p.Manifest.DecodeRows(in) {
				change(row, decodes, values[row*width:(row+1)*width])
			}
			cast, err := tensor.NewCast(tensor.F32, tensor.BF16)
			require.NoError(t, err)
			x.Data = make([]byte, 2*len(values))
			wide, err := binary.Append(nil, binary.LittleEndian, values)
			require.NoError(t, err)
			cast.Convert(x.Data, wide)
			p.Replaced = map[string]tensor.Tensor{attended: x}
		}
		return run(t, c, synth.New(c, 3), p, verify.Options{Undiagnosed: true, Layers: selected(t, text.Spans{{0, 0}})})
	}
	r := judge(nil)
	require.Equal(t, report.Pass, r.Verdict, "%v %v", r.FirstDivergence, r.Reasons)
	ways := r.Golden.Recognised[0]
	require.Equal(t, "none", ways.Ways["absorbed.q"])
	require.Equal(t, "t", ways.Decode["absorbed.q"])
	require.Zero(t, ways.Missed)
	for rows, change := range map[string]func(row int, decodes bool, values []float32){
		"all decode (7 of 9)": func(_ int, decodes bool, values []float32) {
			if decodes {
				values[5] *= 1.05
			}
		},
		"in row 2 of sequence 0 alone": func(row int, _ bool, values []float32) {
			if row == 2 {
				values[5] *= 1.05
			}
		},
	} {
		if rows != "all decode (7 of 9)" && !configtest.Every(t) {
			continue
		}
		r := judge(change)
		require.Equal(t, report.Fail, r.Verdict, rows)
		require.Equal(t, attended, *r.FirstDivergence)
		for _, c := range r.Checks {
			if c.Tensor == attended {
				require.Contains(t, c.Rows, rows)
			}
		}
	}
}

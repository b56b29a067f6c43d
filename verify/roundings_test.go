package verify

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/plan"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/report"
)

// TestRoundedWeightsHaveTheVarianceOfTheirUnits: products, norms, biases and rows of an
// embedding whose weights were drawn in float32 and rounded to BF16 or F16. In standard
// deviations the errors have an RMS of 1, and none is beyond the limit.
func TestRoundedWeightsHaveTheVarianceOfTheirUnits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const width, rows, tokens = 64, 48, 32
	for _, d := range []tensor.DType{tensor.BF16, tensor.F16} {
		draw := func(name string, shape ...int) (wide, narrow model.Weight) {
			n := 1
			for _, s := range shape {
				n *= s
			}
			wide = model.Weight{Name: name, Tensor: tensor.Tensor{DType: tensor.F32, Shape: shape}}
			narrow = model.Weight{Name: name, Tensor: tensor.Tensor{DType: d, Shape: shape}}
			for range n {
				v := float32(r.NormFloat64() * 0.05)
				wide.Data = binary.LittleEndian.AppendUint32(wide.Data, math.Float32bits(v))
				short := math.Float32bits(tensor.Rounded(v, d)) >> 16
				if d == tensor.F16 {
					o := tensor.Ordinal(v, d)
					short = uint32(max(o, -o)) | uint32(o>>48&0x8000)
				}
				narrow.Data = binary.LittleEndian.AppendUint16(narrow.Data, uint16(short))
			}
			return wide, narrow
		}
		w, wRounded := draw("w", rows, width)
		b, bRounded := draw("b", rows)
		n, nRounded := draw("n", width)
		e, eRounded := draw("e", tokens, width)
		x := &model.Activation{DType: tensor.F32, Shape: []int{tokens, width}}
		for range tokens * width {
			x.Values = append(x.Values, float32(r.NormFloat64()))
		}
		ids := make([]int, tokens)
		for i := range ids {
			ids[i] = i
		}
		exactly := newAnalysis(model.Options{DType: tensor.F32}, nil)
		rounded := newAnalysis(model.Options{DType: tensor.F32}, roundings{"w": all("cast"), "b": all("cast"), "n": all("cast"), "e": all("cast")})
		for name, both := range map[string][2]*value{
			"Linear":        {exactly.Linear(exact(x), &model.Linear{Weight: w}), rounded.Linear(exact(x), &model.Linear{Weight: wRounded})},
			"Linear + bias": {exactly.Linear(exact(x), &model.Linear{Weight: w, Bias: b}), rounded.Linear(exact(x), &model.Linear{Weight: wRounded, Bias: bRounded})},
			"RMSNorm":       {exactly.RMSNorm(exact(x), &n, 1e-6), rounded.RMSNorm(exact(x), &nRounded, 1e-6)},
			"AddBias":       {exactly.AddBias(exact(zeros(tokens, rows)), &b), rounded.AddBias(exact(zeros(tokens, rows)), &bRounded)},
			"Embed":         {exactly.Embed(&e, ids), rounded.Embed(&eRounded, ids)},
		} {
			dist := measure(both[1], both[0].Values, allRows(both[0].Values, both[1]), 1)
			require.True(t, dist.finite)
			require.Less(t, dist.largest, 5.0, "%s %s", d, name)
			require.InDelta(t, 1, dist.rms, 0.3, "%s %s", d, name)
		}
		exactly.Close()
		rounded.Close()
	}
}

// TestBlocksHaveTheVarianceOfTheirSteps: products and rows of an embedding whose weights were
// drawn in float32 and quantised. In standard deviations the errors have an RMS of about
// 1, or somewhat less, and none is beyond the limit.
func TestBlocksHaveTheVarianceOfTheirSteps(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const width, rows, tokens = 256, 24, 16
	values, data := make([]float32, rows*width), []byte(nil)
	for i := range values {
		values[i] = float32(r.NormFloat64() * 0.05)
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(values[i]))
	}
	x := &model.Activation{DType: tensor.F32, Shape: []int{tokens, width}}
	for range tokens * width {
		x.Values = append(x.Values, float32(r.NormFloat64()))
	}
	wide := model.Weight{Name: "w", Tensor: tensor.Tensor{DType: tensor.F32, Shape: []int{rows, width}, Data: data}}
	for _, d := range []tensor.DType{tensor.Q4_0, tensor.Q5_0, tensor.Q5_1, tensor.Q8_0, tensor.Q4_K, tensor.Q5_K, tensor.Q6_K} {
		narrow := model.Weight{Name: "w", Tensor: tensor.Tensor{DType: d, Shape: wide.Shape, Data: make([]byte, d.Bytes(rows*width))}}
		q, err := tensor.NewQuantiser(d)
		require.NoError(t, err)
		q.Convert(narrow.Data, values, &tensor.Loss{})
		exactly := newAnalysis(model.Options{DType: tensor.F32}, nil)
		rounded := newAnalysis(model.Options{DType: tensor.F32}, roundings{"w": all("quantise")})
		ids := []int{3, 0, 23, 3}
		for name, both := range map[string][2]*value{
			"Linear": {exactly.Linear(exact(x), &model.Linear{Weight: wide}), rounded.Linear(exact(x), &model.Linear{Weight: narrow})},
			"Embed":  {exactly.Embed(&wide, ids), rounded.Embed(&narrow, ids)},
		} {
			dist := measure(both[1], both[0].Values, allRows(both[0].Values, both[1]), 1)
			require.True(t, dist.finite)
			require.Less(t, dist.largest, 5.0, "%s %s", d, name)
			require.Greater(t, dist.rms, 0.6, "%s %s", d, name) // the ends of the ranges of types K are wide
			require.Less(t, dist.rms, 1.1, "%s %s", d, name)
		}
		exactly.Close()
		rounded.Close()
	}
}

func zeros(shape ...int) *model.Activation {
	return &model.Activation{DType: tensor.F32, Shape: shape, Values: make([]float32, shape[0]*shape[1])}
}

// TestLimitsDoNotGrowWithSize: one element out of its limit fails among ten and among a
// million.
func TestLimitsDoNotGrowWithSize(t *testing.T) {
	for _, rows := range []int{1, 1 << 10, 1 << 16} {
		x := &value{Activation: zeros(rows, 16), sigma: zeros(rows, 16)}
		for i := range x.Values {
			x.Values[i], x.sigma.Values[i] = 1, 1
		}
		want := append([]float32{}, x.Values...)
		want[len(want)/2] += 20 * unit
		d := measure(x, want, allRows(want, x), 1)
		require.InDelta(t, 20, d.largest, 1.01)
		require.Equal(t, 1, d.beyond)
	}
}

// TestDenormalsOfACast: a BF16 checkpoint of tiny weights, and its conversion to F16, held to packs of
// the original. The cast rounds below 2^-17 only. Without what the manifest says of that the
// embedding is held to the bit and fails; with it all stages pass, and half steps count of the
// elements that were rounded alone: another F16 some steps away, or eight from a number that
// the cast kept, is no rounding.
func TestDenormalsOfACast(t *testing.T) {
	src, dst := t.TempDir(), filepath.Join(t.TempDir(), "f16")
	require.NoError(t, os.CopyFS(src, os.DirFS(filepath.Join("..", "fixtures", "v1-base", "checkpoint"))))
	original := reopened(t, src)
	const embedding = "model.embed_tokens.weight"
	eachWeight(t, original, func(name string, data []byte) {
		switch {
		case name == embedding:
			shrink(data, 6)
		case strings.HasSuffix(name, ".down_proj.weight"):
			shrink(data, 12)
		}
	})
	in := &model.Input{Batch: 2, Seq: 24}
	for i := range 48 {
		in.InputIDs = append(in.InputIDs, (i*37+11)%original.Config.VocabSize)
	}
	done, err := convert.Run(t.Context(), dst, original, convert.Options{Options: plan.Options{DType: tensor.F16}})
	require.NoError(t, err)
	lost := tensor.Loss{}
	for _, l := range done.Lost {
		lost.Add(l.Loss)
	}
	require.Greater(t, lost.Denormal, int64(5000))
	require.Zero(t, lost.Rounded+lost.Overflow+lost.NotFinite)
	rounded, err := convert.Rounded(t.Context(), dst)
	require.NoError(t, err)
	require.Equal(t, tensor.Rounding{By: "cast F16", Denormals: true}, rounded[embedding])
	row := 2 * original.Config.HiddenSize
	for d, far := range map[tensor.DType]uint16{tensor.F32: 3, tensor.BF16: 4} { // steps
		golden := recorded(t, original.Config, original, in, d)
		verdict := func(o Options) *report.Report {
			r, err := Run(t.Context(), original.Config, reopened(t, dst), golden, o)
			require.NoError(t, err)
			return r
		}
		r := verdict(Options{})
		require.Equal(t, report.Fail, r.Verdict)
		require.Equal(t, "model.embed_tokens.output", *r.FirstDivergence)
		asked := Options{Rounded: func() (map[string]tensor.Rounding, error) { return rounded, nil }}
		r = verdict(asked)
		require.Equal(t, report.Pass, r.Verdict, "%v %v", r.FirstDivergence, r.Reasons)
		require.Equal(t, []string{"cast F16"}, r.Rounding.Operations)
		require.Equal(t, len(rounded), r.Rounding.Weights)

		step := func(rounded bool, steps uint16) *report.Report {
			move := func(steps uint16) {
				eachWeight(t, reopened(t, dst), func(name string, data []byte) {
					if name == embedding {
						at := slices.IndexFunc(in.InputIDs, func(id int) bool { return stepFirst(data[row*id:][:row], rounded, steps) })
						require.GreaterOrEqual(t, at, 0)
					}
				})
			}
			move(steps)
			defer move(-steps)
			return verdict(asked)
		}
		require.Equal(t, report.Pass, step(true, 1).Verdict)
		for _, r := range []*report.Report{step(true, far), step(false, 8)} {
			require.Equal(t, report.Fail, r.Verdict)
			require.Equal(t, "model.embed_tokens.output", *r.FirstDivergence)
		}
	}
}

// stepFirst adds steps to the first F16 that a cast from BF16 may have rounded, or cannot have, and
// says whether there is one.
func stepFirst(data []byte, rounded bool, steps uint16) bool {
	for i := 0; i < len(data); i += 2 {
		p := binary.LittleEndian.Uint16(data[i:])
		if m := p & 0x7fff; rounded && 0x10 <= m && m < 0x70 || !rounded && 0x800 <= m { // 2^-17 is 0x80
			binary.LittleEndian.PutUint16(data[i:], p+steps)
			return true
		}
	}
	return false
}

// reopened opens a checkpoint until the test ends.
func reopened(t *testing.T, dir string) *checkpoint.Checkpoint {
	c, err := checkpoint.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// eachWeight lets change edit the bytes of a checkpoint's weights in their files.
func eachWeight(t *testing.T, c *checkpoint.Checkpoint, change func(name string, data []byte)) {
	paths, err := filepath.Glob(filepath.Join(c.Dir, "*.safetensors"))
	require.NoError(t, err)
	for _, path := range paths {
		f, err := checkpoint.FormatOf(path).Open(path)
		require.NoError(t, err)
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		for info := range c.Tensors() {
			if _, offset, ok := f.Lookup(info.Name); ok {
				change(info.Name, data[offset:offset+info.Bytes()])
			}
		}
		require.NoError(t, f.Close())
		require.NoError(t, os.WriteFile(path, data, 0o600))
	}
}

// shrink divides BF16 numbers by 2^exponent; what would be no normal number stays.
func shrink(data []byte, exponent uint16) {
	for i := 0; i < len(data); i += 2 {
		if p := binary.LittleEndian.Uint16(data[i:]); p>>7&0xff > exponent {
			binary.LittleEndian.PutUint16(data[i:], p-exponent<<7)
		}
	}
}

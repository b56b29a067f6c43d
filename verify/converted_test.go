package verify

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/convert"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/format"
	"dsmoe/convert/plan"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/report"
)

// TestDenormalsOfACast_every: a BF16 checkpoint of tiny weights, and its conversion to F16, held to packs of
// the original. The cast rounds below 2^-17 only. Without what the manifest says of that the
// embedding is held to the bit and fails; with it all stages pass, and half steps count of the
// elements that were rounded alone: another F16 some steps away, or eight from a number that
// the cast kept, is no rounding.
func TestDenormalsOfACast_every(t *testing.T) {
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
	rounded, err := convert.Rounded(t.Context(), reopened(t, dst))
	require.NoError(t, err)
	require.Equal(t, tensor.Rounding{By: "cast F16", Denormals: true}, rounded[embedding])
	row := 2 * original.Config.HiddenSize
	for d, far := range map[tensor.DType]uint16{tensor.F32: 3, tensor.BF16: 4} { // steps
		if d == tensor.BF16 && !configtest.Every(t) {
			continue
		}
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
		require.Greater(t, len(r.Rounding.Stages), 1)
		fast := asked
		fast.FailFast = true
		require.Equal(t, r.Rounding, verdict(fast).Rounding, "all stages that fail are counted")

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
		f, err := format.OpenFile(path, checkpoint.FormatOf(path).Open)
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

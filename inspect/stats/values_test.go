package stats

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/inspect"
	"dsmoe/inspect/header"
	"dsmoe/inspect/inspecttest"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text/problem"
)

// audit reads everything.
func audit(t *testing.T, s *inspecttest.Stored, v Values) *header.AuditReport {
	t.Helper()
	v.Reader = s
	a, err := AuditValues(t.Context(), s.Checkpoint, v)
	require.NoError(t, err)
	return a
}

const (
	normal = "model.layers.1.self_attn.o_proj.weight"
	dead   = "model.layers.2.mlp.experts.3"
)

func TestValuesOfWholeCheckpoints(t *testing.T) {
	for name, checked := range map[string]int{"v1-base": 4, "v1-rope-linear-tied-bias": 4, "v3": 4, "v3-fp8": 5} {
		a := audit(t, inspecttest.Fill(t, configtest.Fixture(t, name+"/checkpoint")), Values{})
		assert.Empty(t, a.Findings, name)
		assert.True(t, a.Clean, name)
		assert.Len(t, a.Checked, checked, name)
		assert.Empty(t, a.NotChecked, name)
	}
}

func TestValues(t *testing.T) {
	base := func(t *testing.T) *config.Config { return configtest.Fixture(t, "v1-base/checkpoint") }
	fp8 := func(t *testing.T) *config.Config { return configtest.Fixture(t, "v3-fp8/checkpoint") }
	tied := func(t *testing.T) *config.Config { return configtest.Fixture(t, "v1-rope-linear-tied-bias/checkpoint") }
	f32 := func(v float64) []byte { return binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(v))) }
	for name, c := range map[string]struct {
		config   func(t *testing.T) *config.Config
		damage   func(s *inspecttest.Stored)
		problems int
		want     []string // lines of the report
		lacks    string
	}{
		"NaN and infinities": {base, func(s *inspecttest.Stored) {
			s.Put(normal, 5, 0x7fc0, 0xff80, 0xffff, 0x7f80,
				0x7f80)
		}, 2,
			[]string{"value: " + normal + ": 2 of 4096 values are NaN",
				"value: " + normal + ": 3 of 4096 values are infinite"}, "F16"},
		"beyond F16": {base, func(s *inspecttest.Stored) { s.Put(normal, 0, 0x4780, 0xc780, 0x477f) }, 0,
			[]string{"no problems, 1 note", "note: a.safetensors: " + normal + ": 2 of 4096 values are beyond the range of F16"}, "value:"},
		"zero tensor": {base, func(s *inspecttest.Stored) { s.Zero(normal); s.Put(normal, 9, 0x8000) }, 1,
			[]string{"value: " + normal + ": every value is zero"}, "expert"},
		"zero bias": {tied, func(s *inspecttest.Stored) { s.Zero("model.layers.1.self_attn.q_proj.bias") }, 0,
			[]string{"note: a.safetensors: model.layers.1.self_attn.q_proj.bias: every value is zero"}, "value:"},
		"dead expert": {base, func(s *inspecttest.Stored) {
			s.Zero(dead+".gate_proj.weight", dead+".up_proj.weight", dead+".down_proj.weight")
			s.Zero("model.layers.2.mlp.experts.4.up_proj.weight")
		}, 2, []string{"value: " + dead + ": every weight of the expert is zero", "value: model.layers.2.mlp.experts.4.up_proj.weight: every value is zero"}, dead + "."},
		"an expert read in part": {base, func(s *inspecttest.Stored) {
			s.Zero(dead+".gate_proj.weight", dead+".up_proj.weight", dead+".down_proj.weight")
			s.Broken[dead+".down_proj.weight"] = true
		}, 3, []string{dead + ".down_proj.weight: cannot be read", "value: " + dead + ".up_proj.weight: every value is zero"}, "every weight"},
		"part of an expert": {base, func(s *inspecttest.Stored) {
			for i := range s.Files {
				s.Files[i].Tensors = slices.DeleteFunc(slices.Clone(s.Files[i].Tensors),
					func(x tensor.Info) bool { return x.Name == dead+".gate_proj.weight" })
			}
			s.Zero(dead+".up_proj.weight", dead+".down_proj.weight")
		}, 3, []string{"missing: " + dead + ".gate_proj.weight", "value: " + dead + ".down_proj.weight: every value is zero"}, "every weight"},
		"scales": {fp8, func(s *inspecttest.Stored) {
			const scales = "model.layers.1.mlp.experts.2.up_proj.weight_scale_inv"
			copy(s.Data[scales], append(f32(0), f32(math.Inf(1))...))
			copy(s.Data["model.layers.1.mlp.experts.3.up_proj.weight_scale_inv"], append(f32(-1), f32(math.NaN())...))
		}, 5, []string{
			"value: model.layers.1.mlp.experts.{2..3}.up_proj.weight_scale_inv (2 tensors): 1 of 2 scales are 0 or below",
			"value: model.layers.1.mlp.experts.2.up_proj.weight_scale_inv: 1 of 2 values are infinite",
			"value: model.layers.1.mlp.experts.2.up_proj.weight: ", // with it
			"value: model.layers.1.mlp.experts.3.up_proj.weight_scale_inv: 1 of 2 values are NaN",
		}, "F16: "},
		"FP8": {fp8, func(s *inspecttest.Stored) {
			s.Data["model.layers.1.mlp.experts.2.up_proj.weight"][7] = 0xff
			s.Zero("model.layers.1.mlp.experts.4.up_proj.weight")
			s.Data["model.layers.1.mlp.experts.5.up_proj.weight"] = slices.Repeat([]byte{0x38, 0x40}, 72*96) // 1, 2; twice 3e38 is beyond F32
			s.Data["model.layers.1.mlp.experts.5.up_proj.weight"][0] = 0x7f
			copy(s.Data["model.layers.1.mlp.experts.5.up_proj.weight_scale_inv"], append(f32(3e38), f32(60000)...))
		}, 4, []string{
			"value: model.layers.1.mlp.experts.{2,5}.up_proj.weight (2 tensors): 1 of 13824 values are NaN",
			"value: model.layers.1.mlp.experts.5.up_proj.weight: 4608 of 13824 values are infinite with their scales",
			"value: model.layers.1.mlp.experts.4.up_proj.weight: every value is zero",
			"note: a.safetensors: model.layers.1.mlp.experts.5.up_proj.weight: 6911 of 13824 values are beyond the range of F16",
		}, "scales are"},
		"tied, and not alike": {tied, func(s *inspecttest.Stored) {
			s.Store("lm_head.weight", tensor.BF16, []int{256, 64}, slices.Clone(s.Data["model.embed_tokens.weight"]))
			s.Put("lm_head.weight", 100, 0x4000, 0x4001)
		}, 1, []string{"value: lm_head.weight: 2 of 16384 values are not those of model.embed_tokens.weight, though tie_word_embeddings is true", "lm_head.weight against model.embed_tokens.weight, which it is tied to"}, "zero:"},
		"tied, in another shape": {tied, func(s *inspecttest.Stored) {
			s.Store("lm_head.weight", tensor.BF16, []int{1, 2},
				[]byte{1, 1, 1, 1})
		}, 1,
			[]string{"value: lm_head.weight: shape [1 2], but model.embed_tokens.weight has [256 64]"}, "which it is tied to"},
		"tied, and not to be compared": {tied, func(s *inspecttest.Stored) {
			s.Store("lm_head.weight", tensor.I16, []int{256, 64}, make([]byte, 2*256*64))
		}, 0,
			[]string{"not checked  lm_head.weight against model.embed_tokens.weight: they cannot be compared"}, "which it is tied to"},
		"tied, and alike": {tied, func(s *inspecttest.Stored) {
			s.Store("lm_head.weight", tensor.BF16, []int{256, 64}, slices.Clone(s.Data["model.embed_tokens.weight"]))
		}, 0, []string{"ckpt: clean", "lm_head.weight against model.embed_tokens.weight, which it is tied to"}, "value:"},
		"unreadable": {base, func(s *inspecttest.Stored) { s.Broken[normal] = true; s.Put("model.norm.weight", 0, 0x7fc0) },
			2,
			[]string{"broken: a.safetensors: " + normal + ": cannot be read: disk on fire",
				"value: model.norm.weight: 1 of 64 values are NaN",
				"not checked  the values of 1 weight that cannot be read", "every value of 185 weights"}, "zero:"},
		"unreadable scales": {fp8, func(s *inspecttest.Stored) { s.Broken["model.layers.1.mlp.experts.2.up_proj.weight_scale_inv"] = true }, 1,
			[]string{"broken: a.safetensors: model.layers.1.mlp.experts.2.up_proj.weight_scale_inv: cannot be read: disk on fire", "1 weight that cannot be read", "not checked  the range of F16 for 1 FP8 weight without usable scales"}, "up_proj.weight:"},
		"another dtype": {base, func(s *inspecttest.Stored) { s.Store("odd", tensor.I8, []int{4}, make([]byte, 4)) }, 1,
			[]string{"unexpected: odd", "not checked  the values of 1 tensor of dtypes that the model does not compute with"}, "zero:"},
		"no config": {base, func(s *inspecttest.Stored) {
			s.Config = nil
			s.Findings = []inspect.Finding{inspect.Broken.Of(problem.Problem{File: "config.json", Cause: "missing"})}
			s.Put(normal, 5, 0x7fc0)
		}, 2, []string{"value: " + normal + ": 1 of 4096 values are NaN"}, "headers cannot"},
		"no file": {base, func(s *inspecttest.Stored) {
			s.Findings = []inspect.Finding{inspect.Broken.Of(problem.Problem{File: "c.safetensors", Cause: "file is empty"})}
		}, 1,
			[]string{"not checked  the values in files that cannot be used"}, "value:"},
		"two files": {base, func(s *inspecttest.Stored) {
			s.Files = append(s.Files, inspect.File{Name: "c.safetensors", Size: 9,
				Tensors: []tensor.Info{{Name: normal, DType: tensor.BF16, Shape: []int{64, 64}}}})
		}, 1, []string{"not checked  the values of 1 tensor that a second file holds too, there"}, "value:"},
	} {
		t.Run(name, func(t *testing.T) {
			s := inspecttest.Fill(t, c.config(t))
			c.damage(s)
			a := audit(t, s, Values{})
			assert.Equal(t, c.problems, a.Problems)
			assert.Equal(t, c.problems == 0, a.Clean)
			got := inspecttest.Printed(t, a)
			for _, want := range c.want {
				assert.Contains(t, got, want)
			}
			assert.NotContains(t, strings.ReplaceAll(got, "all zero, the range of F16", ""), c.lacks)
			assert.NotContains(t, got, "not checked  the values of the weights\n")
		})
	}
}

// TestFusedExpertsAreLookedIntoOneByOne: one dead expert of many in a tensor, and fused
// tensors that cannot be taken apart.
// TestStoredFrequencies: inv_freq of another theta is found, the config's own is not.
func TestStoredFrequencies(t *testing.T) {
	for theta, want := range map[float64]string{10000: "", 500000: "is that of rope_theta 500000, config.json has 10000: the reference computes RoPE from config.json, and so does dsmoe"} {
		s := inspecttest.Fill(t, configtest.Fixture(t, "v1-base/checkpoint"))
		n, data := s.Config.HeadDim()/2, []byte(nil)
		for i := range n {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(math.Pow(theta, -float64(i)/float64(n)))))
		}
		s.Store("model.layers.1.self_attn.rotary_emb.inv_freq", tensor.F32, []int{n}, data)
		a := audit(t, s, Values{})
		if want == "" {
			require.Empty(t, a.Findings)
			continue
		}
		require.Len(t, a.Findings, 1)
		require.Equal(t, want, a.Findings[0].Cause)
	}
}

// TestWastefulBlocks: a Q8_0 weight whose codes reach 3 of 127 is found, one that reaches 64 is not.
func TestWastefulBlocks(t *testing.T) {
	s := inspecttest.Fill(t, configtest.Fixture(t, "v1-base/checkpoint"))
	for i, x := range s.Files[0].Tensors {
		if x.Name == normal || x.Name == "model.layers.0.self_attn.o_proj.weight" {
			s.Files[0].Tensors[i].DType = tensor.Q8_0
			data := make([]byte, tensor.Q8_0.Bytes(int64(x.Len())))
			for block := range slices.Chunk(data, 34) {
				tensor.PutF16(block, 0.01)
				block[9], block[20] = 64, 3
				if x.Name == normal {
					block[9] = 0xfd
				}
			}
			s.Data[x.Name] = data
		}
	}
	a := audit(t, s, Values{})
	require.Len(t, a.Findings, 1)
	require.Equal(t, normal, a.Findings[0].Tensor)
	require.Equal(t, "128 of 128 blocks use less than half of the range of their codes: a scale is too large", a.Findings[0].Cause)
	require.Contains(t, a.Checked, "the blocks of 2 weights: that they use half of the range of their codes")
}

func TestFusedExpertsAreLookedIntoOneByOne(t *testing.T) {
	s := inspecttest.Fill(t, configtest.Fixture(t, "v1-base/checkpoint"))
	for i := range s.Files {
		s.Files[i].Tensors = slices.DeleteFunc(slices.Clone(s.Files[i].Tensors),
			func(x tensor.Info) bool { return strings.Contains(x.Name, "layers.2.mlp.experts.") })
	}
	s.Store("model.layers.2.mlp.experts.gate_up_proj", tensor.BF16, []int{16, 48, 64},
		slices.Repeat([]byte{0x80, 0x3f}, 16*48*64))
	s.Store("model.layers.2.mlp.experts.down_proj", tensor.BF16, []int{16, 64, 24},
		slices.Repeat([]byte{0x80, 0x3f}, 16*64*24))
	clear(s.Data["model.layers.2.mlp.experts.gate_up_proj"][2*3*48*64:][:2*48*64])
	clear(s.Data["model.layers.2.mlp.experts.down_proj"][2*3*64*24:][:2*64*24])
	a := audit(t, s, Values{})
	require.Len(t, a.Findings, 1)
	assert.Equal(t, dead, a.Findings[0].Tensor)

	s.Config = inspecttest.Override(t, s.Config, "n_routed_experts", "8")
	s.Put("model.layers.2.mlp.experts.down_proj", 17, 0x7fc0)
	assert.Contains(t, inspecttest.Printed(t, audit(t, s, Values{})),
		"value: model.layers.2.mlp.experts.down_proj: 1 of 24576 values are NaN")
}

// TestValuesDoNotDependOnThreads: the same report, and the same number of bytes told of,
// however many read; never more than a tile at a time.
func TestValuesDoNotDependOnThreads(t *testing.T) {
	s := inspecttest.Fill(t, configtest.Fixture(t, "v3-fp8/checkpoint"))
	const large = "model.embed_tokens.weight"
	s.Config = inspecttest.Override(t, s.Config, "vocab_size", "30000")
	for i := range s.Files {
		for k := range s.Files[i].Tensors {
			if x := &s.Files[i].Tensors[k]; x.Name == large || x.Name == head {
				x.Shape = []int{30000, 192}
				s.Data[x.Name] = slices.Repeat([]byte{0xc0, 0x7f, 1, 0x47, 0x80, 0x7f, 0x80, 0x47}, 30000*192/4)
			}
		}
	}
	var want string
	for _, threads := range []int{1, 2, 7, 0} {
		done, total := int64(0), int64(0)
		a := audit(t, s, Values{Threads: threads, Progress: func(d, of int64) {
			assert.Less(t, done, d)
			done, total = d, of
		}})
		assert.Equal(t, total, done)
		got := inspecttest.Printed(t, a)
		if want == "" {
			want = got
		}
		assert.Equal(t, want, got)
		assert.Contains(t, got, "1440000 of 5760000 values are NaN")
	}
	assert.LessOrEqual(t, s.Largest, weights.TileBytes)
}

// TestValuesAreCancelled: no report comes of reading that was called off.
func TestValuesAreCancelled(t *testing.T) {
	s := inspecttest.Fill(t, configtest.Fixture(t, "v1-base/checkpoint"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := AuditValues(ctx, s.Checkpoint, Values{Reader: s})
	require.ErrorIs(t, err, context.Canceled)
}

// TestParts: the checksums of a file's own, of bytes that can be read and that cannot.
func TestParts(t *testing.T) {
	s := inspecttest.Fill(t, configtest.Fixture(t, "v1-base/checkpoint"))
	data := slices.Repeat([]byte("weights"), weights.TileBytes/3)
	sum := crc32.ChecksumIEEE(data[5:])
	v := Values{Parts: []Part{{0, "archive/data/0", normal, 5, int64(len(data)) - 5, sum}},
		ReadFile: func(_ int, dst []byte, offset int64) error {
			copy(dst, data[offset:])
			return nil
		}}
	a := audit(t, s, v)
	assert.Empty(t, a.Findings)
	assert.Contains(t, a.Checked, "1 CRC-32 checksum of archive entries")
	data[len(data)-1]++
	a = audit(t, s, v)
	require.Len(t, a.Findings, 1)
	assert.Equal(t, inspect.Broken, a.Findings[0].Kind)
	assert.Equal(t, normal, a.Findings[0].Tensor)
	assert.Contains(t, a.Findings[0].Cause, "archive entry archive/data/0: CRC-32 is ")
	v.ReadFile = func(int, []byte, int64) error { return errors.New("disk on fire") }
	a = audit(t, s, v)
	require.Len(t, a.Findings, 1)
	assert.Contains(t, a.Findings[0].Cause, "cannot be read: disk on fire")
	assert.Equal(t, []string{"1 CRC-32 checksum of archive entries that cannot be read"}, a.NotChecked)
}

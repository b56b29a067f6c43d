package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/convert/format"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text/problem"
)

// file is a model's GGUF file, before it is written, so that a test can change it.
type file struct {
	config  *config.Config
	keys    []byte
	tensors []tensor.Info
	arch    string
}

// fileOf is the file of a fixture's model, all tensors of dtype d but those that are F32.
func fileOf(t testing.TB, fixture string, d tensor.DType) *file {
	c := configtest.Fixture(t, fixture+"/checkpoint")
	if c.NumNextNPredictLayers > 0 {
		var err error
		c, err = c.Override(map[string]jsontext.Value{"num_nextn_predict_layers": jsontext.Value("0")})
		require.NoError(t, err)
	}
	var infos []tensor.Info
	for s := range table.FamilyOf(c).Slots(c) {
		infos = append(infos, s.Info(tensor.BF16))
	}
	arranged, wrong := arrange(c, infos, "keep")
	require.Empty(t, wrong)
	f := &file{config: c, arch: modelOf(c).arch}
	for _, x := range arranged {
		if x.DType == tensor.Invalid {
			x.DType = d
		}
		f.tensors = append(f.tensors, tensor.Info{Name: x.Name, DType: x.DType, Shape: x.Shape})
	}
	described, err := describe(format.Description{NoVocab: true, Config: c, Name: "x", Type: "keep", Tensors: f.tensors, Was: make([]tensor.DType, len(f.tensors))})
	f.keys = described.Keys
	require.NoError(t, err)
	return f
}

// without removes a key.
func (f *file) without(t testing.TB, key string) *file {
	data := f.header(t)
	h, err := readHeader(strings.NewReader(data), int64(len(data)), "x")
	require.NoError(t, err)
	w := &keyWriter{b: make([]byte, 8)}
	for _, k := range h.keys {
		if k != f.arch+"."+key && k != key {
			w.b = append(w.b, data[h.values[k].at:h.values[k].end]...)
			binary.LittleEndian.PutUint64(w.b, binary.LittleEndian.Uint64(w.b)+1)
		}
	}
	f.keys = w.b
	return f
}

// with gives a key of the architecture a value.
func (f *file) with(t testing.TB, key string, v any) *file {
	w := &keyWriter{b: f.without(t, key).keys, arch: f.arch}
	w.of(key, v)
	f.keys = w.b
	return f
}

// put gives a key of every architecture a value.
func (f *file) put(t testing.TB, key string, v any) *file {
	w := &keyWriter{b: f.without(t, key).keys}
	w.put(key, v)
	f.keys = w.b
	return f
}

// tensor changes the entry of a tensor.
func (f *file) tensor(t testing.TB, name string, change func(*tensor.Info)) *file {
	for i := range f.tensors {
		if f.tensors[i].Name == name {
			change(&f.tensors[i])
			return f
		}
	}
	t.Fatalf("no tensor %s", name)
	return nil
}

// header returns the header and room for the data.
func (f *file) header(t testing.TB) string {
	l, err := newLayout(f.tensors, format.Head{Keys: f.keys})
	require.NoError(t, err)
	return string(l.Header()) + strings.Repeat("\x00", int(l.Size())-len(l.Header()))
}

// assembled is what the file holds.
func (f *file) assembled(t testing.TB) (*format.Assembly, []problem.Problem) {
	path := filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, os.WriteFile(path, []byte(f.header(t)), 0o600))
	opened, err := Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { opened.Close() })
	return assemble([]format.File{opened})
}

// TestConfigsComeBack: what the keys say is the config that they were made of, wherever a
// result depends on it.
func TestConfigsComeBack(t *testing.T) {
	for _, name := range []string{"v1-base", "v1-dense", "v1-massive", "v2-lite", "v2-group-yarn", "v3", "v3-yarn",
		"kimi-k2", "v32", "v32-yarn", "glm5", "glm4-moe-lite", "glm4-moe", "solar-open", "dots1", "hy-v3", "minimax-m2",
		"exaone-moe", "ernie45-moe", "ling-2"} {
		f := fileOf(t, name, tensor.BF16)
		a, wrong := f.assembled(t)
		require.Empty(t, wrong, name)
		back, err := config.Parse(strings.NewReader(string(a.Config)))
		require.NoError(t, err, name)
		for _, d := range config.Differences(f.config, back) {
			require.False(t, d.Meaning, "%s: %v", name, d)
		}
		require.Equal(t, "bfloat16", back.TorchDType)
		names := map[string]bool{}
		for _, x := range a.Tensors {
			names[x.Name] = true
			n := int64(0)
			for _, p := range x.Parts {
				n += p.N
			}
			require.EqualValues(t, x.Len(), n, x.Name)
		}
		for s := range table.FamilyOf(back).Slots(back) {
			require.True(t, names[s.Name], "%s: %s", name, s.Name)
			delete(names, s.Name)
		}
		require.Empty(t, names, name)
	}
}

// TestOlderFiles: kv_b in one piece, and keys that today's files have and older ones lack.
func TestOlderFiles(t *testing.T) {
	f := fileOf(t, "v2-lite", tensor.F16)
	c := f.config
	for _, key := range []string{keyMLA, valueMLA, gatingFunc, groupCount, groupUsed, weightsScale, queryRank} {
		f.without(t, key)
	}
	f.with(t, keyLength, uint32(c.QKHeadDim())).with(t, valueLength, uint32(c.Attention.VHeadDim)).with(t, headCountKV,
		uint32(c.Attention.NumKeyValueHeads))
	for l := range c.NumHiddenLayers {
		f.tensor(t, fmt.Sprintf("blk.%d.attn_k_b.weight", l), func(i *tensor.Info) {
			i.Name, i.Shape = fmt.Sprintf("blk.%d.attn_kv_b.weight", l), []int{c.Attention.NumAttentionHeads *
				(c.Attention.QKNopeHeadDim + c.Attention.VHeadDim), c.Attention.KVLoraRank}
		})
		for i := range f.tensors {
			if f.tensors[i].Name == fmt.Sprintf("blk.%d.attn_v_b.weight", l) {
				f.tensors = append(f.tensors[:i], f.tensors[i+1:]...)
				break
			}
		}
	}
	a, wrong := f.assembled(t)
	require.Empty(t, wrong)
	back, err := config.Parse(strings.NewReader(string(a.Config)))
	require.NoError(t, err)
	for _, d := range config.Differences(c, back) {
		require.False(t, d.Meaning, "%v", d)
	}
	for _, x := range a.Tensors {
		require.True(t, x.Whole(), x.Name)
	}

	// Before V3 no key said the gating function; V3's files of the first days had the bias.
	f = fileOf(t, "v3", tensor.BF16).without(t, gatingFunc)
	a, wrong = f.assembled(t)
	require.Empty(t, wrong)
	require.Contains(t, string(a.Config), `"model_type": "deepseek_v3"`)
}

// TestFusedTensors: queries, keys and values in one tensor, and gates with ups, as --fuse-qkv and
// --fuse-gate-up-exps write them, are cut out of it.
func TestFusedTensors(t *testing.T) {
	f := fileOf(t, "glm4-moe", tensor.Q8_0)
	c, h := f.config, f.config.HiddenSize
	q, kv := headRows(c)
	for i := range f.tensors {
		x := &f.tensors[i]
		before := x.Name
		x.Name = strings.Replace(x.Name, ".attn_q.", ".attn_qkv.", 1)
		x.Name = strings.Replace(x.Name, ".ffn_gate_exps.", ".ffn_gate_up_exps.", 1)
		switch {
		case strings.Contains(x.Name, "_exps") && x.Name != before:
			x.Shape[1] *= 2
		case x.Name != before:
			x.Shape[0] = q + 2*kv
		}
	}
	f.tensors = slices.DeleteFunc(f.tensors, func(x tensor.Info) bool {
		return strings.Contains(x.Name, ".attn_k.") || strings.Contains(x.Name, ".attn_v.") || strings.Contains(x.Name, ".ffn_up_exps.")
	})
	a, wrong := f.assembled(t)
	require.Empty(t, wrong)
	require.Contains(t, string(a.Config), `"attention_bias": true`)
	places := map[string]format.Part{}
	for _, x := range a.Tensors {
		require.NotContains(t, x.Name, "blk.")
		places[x.Name] = x.Parts[0]
	}
	for s := range table.FamilyOf(c).Slots(c) {
		require.Contains(t, places, s.Name)
	}
	n := c.MoE.MoEIntermediateSize
	for name, want := range map[string][2]int{
		"self_attn.q_proj.weight": {0, q * h}, "self_attn.k_proj.weight": {q * h, kv * h}, "self_attn.v_proj.bias": {q + kv, kv},
		"mlp.experts.0.gate_proj.weight": {0, n * h}, "mlp.experts.3.up_proj.weight": {7 * n * h, n * h},
	} {
		part := places["model.layers.1."+name]
		require.Equal(t, want, [2]int{int(part.First), int(part.N)}, name)
	}
	_, wrong = f.tensor(t, "blk.1.ffn_gate_up_exps.weight", func(i *tensor.Info) { i.Shape[1]-- }).assembled(t)
	require.Len(t, wrong, 2, "of gates and ups, once each")
}

// TestFusedRotated: of the first DeepSeekMoE, whose queries and keys have their rows in llama.cpp's order, these are cut out
// of a fused tensor and put in order; of a fused tensor of another shape nothing is read.
func TestFusedRotated(t *testing.T) {
	f := fileOf(t, "v1-base", tensor.BF16)
	plain, wrong := f.assembled(t)
	require.Empty(t, wrong)
	q, kv := headRows(f.config)
	for i := range f.tensors {
		if x := &f.tensors[i]; strings.Contains(x.Name, ".attn_q.") {
			x.Name, x.Shape[0] = strings.Replace(x.Name, ".attn_q.", ".attn_qkv.", 1), q+2*kv
		}
	}
	f.tensors = slices.DeleteFunc(f.tensors, func(x tensor.Info) bool {
		return strings.Contains(x.Name, ".attn_k.") || strings.Contains(x.Name, ".attn_v.")
	})
	a, wrong := f.assembled(t)
	require.Empty(t, wrong)
	want := map[string]format.Assembled{}
	for _, x := range plain.Tensors {
		want[x.Name] = x
	}
	h := f.config.HiddenSize
	for _, x := range a.Tensors {
		same := want[x.Name]
		require.Equal(t, same.Info, x.Info)
		if before, is := map[string]int{"q_proj": 0, "k_proj": q, "v_proj": q + kv}[strings.Split(x.Name+"....", ".")[4]]; is {
			same.Parts[0].Tensor, same.Parts[0].First = x.Parts[0].Tensor, int64(before*h)
			require.Contains(t, x.Parts[0].Tensor, ".attn_qkv.weight")
		}
		require.Equal(t, same.Parts, x.Parts, x.Name)
	}
	_, wrong = f.tensor(t, "blk.1.attn_qkv.weight", func(i *tensor.Info) { i.Shape[0]-- }).assembled(t)
	require.Len(t, wrong, 3)
}

// TestStoredTwice: of attn_kv_b beside its pieces what llama.cpp takes is read, and a note says so.
func TestStoredTwice(t *testing.T) {
	const name = "blk.1.attn_kv_b.weight"
	for _, split := range []bool{true, false} {
		f := fileOf(t, "v3", tensor.BF16)
		c := f.config
		f.tensors = append(f.tensors, tensor.Info{Name: name, DType: tensor.BF16, Shape: []int{c.Attention.NumAttentionHeads *
			(c.Attention.QKNopeHeadDim + c.Attention.VHeadDim), c.Attention.KVLoraRank}})
		if !split {
			f.without(t, keyMLA).without(t, valueMLA)
			f.with(t, keyLength, uint32(c.QKHeadDim())).with(t, valueLength, uint32(c.Attention.VHeadDim)).with(t, headCountKV,
				uint32(c.Attention.NumKeyValueHeads))
		}
		a, wrong := f.assembled(t)
		require.Empty(t, wrong)
		require.Contains(t, strings.Join(a.Notes, "\n"), "1 weight stored whole and in pieces, the first "+name)
		for _, x := range a.Tensors {
			require.NotContains(t, x.Name, "blk.")
			if x.Name == "model.layers.1.self_attn.kv_b_proj.weight" {
				require.Equal(t, split, x.Parts[0].Tensor != name)
			}
		}
	}
}

// TestOtherWriters: what keys can say that this program does not write.
func TestOtherWriters(t *testing.T) {
	v1 := func() *file { return fileOf(t, "v1-base", tensor.BF16) }
	words := slices.Repeat([]string{"x"}, 256)
	linear := v1().with(t, scalingType, "linear").with(t, scalingFactor, float32(4))
	for member, f := range map[string]*file{
		`"rope_scaling": {"type": "linear", "factor": 4.0}`: linear,
		`"n_routed_experts": null`:                          fileOf(t, "v1-dense", tensor.BF16).with(t, expertCount, uint32(0)),
		`"vocab_size": 256`:                                 v1().without(t, vocabSize).put(t, tokensKey, words),
		`"num_key_value_heads": 4`:                          v1().without(t, headCountKV),
		`"head_dim": 16`:                                    fileOf(t, "dots1", tensor.BF16).without(t, keyLength),
		`"bos_token_id": 3`:                                 v1().put(t, "tokenizer.ggml.bos_token_id", uint32(3)),
		`"eos_token_id": 7`:                                 v1().put(t, "tokenizer.ggml.eos_token_id", uint32(7)),
	} {
		a, wrong := f.assembled(t)
		require.Empty(t, wrong, member)
		require.Contains(t, string(a.Config), member)
	}
}

// TestScaleOfZero: llama.cpp does not scale by 0.
func TestScaleOfZero(t *testing.T) {
	for _, fixture := range []string{"v1-base", "v2-lite", "v3"} {
		a, wrong := fileOf(t, fixture, tensor.BF16).with(t, weightsScale, float32(0)).assembled(t)
		require.Empty(t, wrong, fixture)
		c, err := config.Parse(strings.NewReader(string(a.Config)))
		require.NoError(t, err)
		require.EqualValues(t, 1, c.Router.RoutedScalingFactor, fixture)
	}
}

// TestMixedParts: a transposed tensor in blocks cannot be cut apart, and parts of several
// dtypes have none in common: such weights are F32, and say how their parts are stored.
func TestMixedParts(t *testing.T) {
	for _, c := range []struct{ keys, values, want tensor.DType }{
		{tensor.BF16, tensor.BF16, tensor.BF16}, {tensor.F16, tensor.Q8_0, tensor.F32}, {tensor.BF16, tensor.F32, tensor.F32},
	} {
		f := fileOf(t, "v2-lite", tensor.BF16)
		f.tensor(t, "blk.1.attn_k_b.weight", func(i *tensor.Info) { i.DType = c.keys })
		f.tensor(t, "blk.1.attn_v_b.weight", func(i *tensor.Info) { i.DType = c.values })
		a, wrong := f.assembled(t)
		require.Empty(t, wrong)
		for _, x := range a.Tensors {
			if x.Name != "model.layers.1.self_attn.kv_b_proj.weight" {
				continue
			}
			require.Equal(t, c.want, x.DType)
			require.Equal(t, c.keys, x.Parts[0].Stored(x.DType))
			require.Equal(t, c.values, x.Parts[1].Stored(x.DType))
			require.False(t, x.Whole())
		}
	}
}

// TestWrongFiles: all that keys and tensors contradict each other in is named, with the key or
// the tensor.
func TestWrongFiles(t *testing.T) {
	v1, v3 := func() *file { return fileOf(t, "v1-base", tensor.BF16) }, func() *file { return fileOf(t, "v3", tensor.BF16) }
	shape := func(n ...int) func(*tensor.Info) { return func(i *tensor.Info) { i.Shape = n } }
	for name, c := range map[string]struct {
		file *file
		want []string
	}{
		"no architecture":                       {v1().without(t, architectureKey), []string{"key general.architecture is missing"}},
		"keys that are missing":                 {v1().without(t, blockCount).without(t, "embedding_length"), []string{"keys are missing:", "deepseek.block_count", "deepseek.embedding_length"}},
		"a number that is none":                 {v1().with(t, "context_length", "many"), []string{"key deepseek.context_length: many is not a whole number"}},
		"a number that is none either":          {v1().with(t, "rope.freq_base", float32(math.NaN())), []string{"key deepseek.rope.freq_base: NaN is not a number"}},
		"layers that differ":                    {v1().with(t, "attention.head_count", []int32{4, 4, 2, 4}), []string{"differs from layer to layer, which config.json cannot say"}},
		"heads of another width":                {v1().with(t, ropeDims, uint32(8)), []string{"key deepseek.rope.dimension_count: 8, but each of 4 heads has a share of embedding_length 64"}},
		"a sigmoid in V1":                       {v1().with(t, gatingFunc, gatings[sigmoid]), []string{"a gating function that this architecture does not have"}},
		"more experts per token than there are": {v1().with(t, "expert_used_count", uint32(17)), []string{"its keys make no config: ", "num_experts_per_tok"}},
		"scaling of another kind":               {v3().with(t, scalingType, "longrope"), []string{"longrope cannot be read with architecture deepseek2"}},
		"scaling that V1 has alone":             {v3().with(t, scalingType, "linear"), []string{"linear cannot be read with architecture deepseek2"}},
		"scaling that V1 does not have":         {v1().with(t, scalingType, "yarn").with(t, scalingContext, uint32(64)), []string{"yarn cannot be read with architecture deepseek"}},
		"more prediction layers than layers":    {v3().with(t, nextnLayers, uint32(9)), []string{"key deepseek2.nextn_predict_layers: 9 of 5 blocks"}},
		"yarn as nobody has it":                 {v3().with(t, scalingType, "yarn").with(t, scalingFactor, float32(40)).with(t, scalingContext, uint32(64)), []string{"yarn_log_multiplier: is missing or 0"}},
		"a cache of other sizes": {v3().with(t, headCountKV, uint32(4)).with(t, keyLength, uint32(39)).with(t, valueLength, uint32(31)), []string{
			"key deepseek2.attention.head_count_kv: 4, but the other keys make it 1", "key deepseek2.attention.key_length: 39, but the other keys make it 48",
			"key deepseek2.attention.value_length: 31, but the other keys make it 32"}},
		"heads of kv_b in one piece":    {v3().without(t, keyMLA).without(t, valueMLA).with(t, keyLength, uint32(24)).with(t, valueLength, uint32(16)), []string{"key deepseek2.attention.head_count_kv: 1, but the other keys make it 4"}},
		"experts that are scaled in V1": {v1().with(t, weightsScale, float32(16)), []string{"key deepseek.expert_weights_scale: 16, but this architecture scales by 1"}},
		"another vocabulary":            {v1().with(t, vocabSize, uint32(255)).put(t, tokensKey, slices.Repeat([]string{"x"}, 256)), []string{"key deepseek.vocab_size: 255, but the vocabulary has 256 tokens"}},
		"a stack of too few":            {v1().tensor(t, "blk.1.ffn_up_exps.weight", shape(15, 24, 64)), []string{"tensor blk.1.ffn_up_exps.weight: shape [15 24 64], the keys say [16 24 64]"}},
		"shapes, all of them": {v3().tensor(t, "blk.0.attn_k_b.weight", shape(4, 24, 32)).tensor(t, "output_norm.weight", shape(63)),
			[]string{"tensor blk.0.attn_k_b.weight: shape [4 24 32], the keys say [4 32 24]", "tensor output_norm.weight: shape [63], the keys say [64]"}},
	} {
		_, wrong := c.file.assembled(t)
		require.NotEmpty(t, wrong, name)
		all := fmt.Sprint(wrong)
		for _, want := range c.want {
			require.Contains(t, all, want, name)
		}
	}
	f := v1()
	f.arch = "llama"
	_, wrong := f.put(t, architectureKey, "llama").assembled(t)
	require.Contains(t, wrong[0].Cause, "general.architecture is llama: this program reads deepseek, deepseek2, deepseek32, glm-dsa")
}

// TestStrangers: a tensor that the table does not know is not left out, so that whoever
// compares tensors and config finds it.
func TestStrangers(t *testing.T) {
	f := fileOf(t, "v1-base", tensor.BF16)
	f.tensors = append(f.tensors, tensor.Info{Name: "rope_freqs.weight", DType: tensor.F32, Shape: []int{8}})
	a, wrong := f.assembled(t)
	require.Empty(t, wrong)
	require.Equal(t, "rope_freqs.weight", a.Tensors[len(a.Tensors)-1].Name)
}

// TestShardsThatDoNotBelongTogether: each file of a set says its place in it.
func TestShardsThatDoNotBelongTogether(t *testing.T) {
	f := fileOf(t, "v1-base", tensor.BF16)
	half := len(f.tensors) / 2
	open := func(tensors []tensor.Info, head format.Head) format.File {
		l, err := newLayout(tensors, head)
		require.NoError(t, err)
		path := filepath.Join(t.TempDir(), "x.gguf")
		require.NoError(t, os.WriteFile(path, append(l.Header(), make([]byte, int(l.Size())-len(l.Header()))...), 0o600))
		opened, err := Open(path)
		require.NoError(t, err)
		t.Cleanup(func() { opened.Close() })
		return opened
	}
	n := len(f.tensors)
	first, second := open(f.tensors[:half], format.Head{Keys: f.keys, Shards: 2, Tensors: n}), open(f.tensors[half:], format.Head{Shard: 1, Shards: 2, Tensors: n})
	a, wrong := assemble([]format.File{first, second})
	require.Empty(t, wrong)
	require.Len(t, a.Tensors, 186)
	for want, files := range map[string][]format.File{
		"split.no is 1, but by its name it is 0":        {second, first},
		"split.count is 2, but the set has 1 file":      {first},
		"split.tensors.count is 51, but the files have": {first, open(f.tensors[half+1:], format.Head{Shard: 1, Shards: 2, Tensors: n})},
		"is in ": {first, open(f.tensors[half-1:], format.Head{Shard: 1, Shards: 2, Tensors: n + 1})},
		"keys split.no and split.count, which say its place": {first, open(f.tensors[half:], format.Head{Keys: f.keys})},
	} {
		_, wrong := assemble(files)
		require.Contains(t, fmt.Sprint(wrong), want)
	}
}

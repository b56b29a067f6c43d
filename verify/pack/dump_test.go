package pack_test

import (
	"archive/zip"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/convert/torchbin"
	"dsmoe/model/tensor"
	"dsmoe/verify/pack"
)

// saved is the bytes of a file that torch.save writes of a dict of tensors, lists of texts, and dicts of them.
func saved(t *testing.T, values map[string]any) []byte {
	var b strings.Builder
	z, storages := zip.NewWriter(&b), [][]byte{}
	var pickle func(v any) string
	number := func(n int) string { return "J" + string(binary.LittleEndian.AppendUint32(nil, uint32(n))) }
	text := func(s string) string { return "X" + string(binary.LittleEndian.AppendUint32(nil, uint32(len(s)))) + s }
	dims := func(all []int) string {
		s := "("
		for _, n := range all {
			s += number(n)
		}
		return s + "t"
	}
	pickle = func(v any) string {
		switch v := v.(type) {
		case map[string]any:
			s := "}("
			for _, key := range slices.Sorted(maps.Keys(v)) {
				s += text(key) + pickle(v[key])
			}
			return s + "u"
		case []string:
			s := "]("
			for _, item := range v {
				s += text(item)
			}
			return s + "e"
		case []any:
			s := "("
			for _, item := range v {
				s += pickle(item)
			}
			return s + "t"
		case string:
			return text(v)
		case tensor.Tensor:
			strides, n := make([]int, len(v.Shape)), 1
			for i := len(strides) - 1; i >= 0; i-- {
				strides[i], n = n, n*v.Shape[i]
			}
			kind := map[tensor.DType]string{tensor.F32: "FloatStorage", tensor.BF16: "BFloat16Storage", tensor.I64: "LongStorage",
				tensor.I32: "IntStorage"}[v.DType]
			storages = append(storages, v.Data)
			return "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\n" + kind + "\n" +
				text(fmt.Sprint(len(storages)-1)) + text("cpu") + number(n) + "tQ" + number(0) + dims(v.Shape) + dims(strides) +
				"\x89ccollections\nOrderedDict\n)RtR"
		}
		return number(v.(int))
	}
	add := func(name string, data []byte) {
		w, err := z.CreateHeader(&zip.FileHeader{Name: "archive/" + name, Method: zip.Store})
		require.NoError(t, err)
		_, err = w.Write(data)
		require.NoError(t, err)
	}
	add("data.pkl", []byte("\x80\x02"+pickle(values)+"."))
	add("byteorder", []byte("little"))
	for i, data := range storages {
		add(fmt.Sprint("data/", i), data)
	}
	require.NoError(t, z.Close())
	return []byte(b.String())
}

// numbered is a tensor of whole numbers, of one axis or of rows.
func numbered(d tensor.DType, width int, values ...int) tensor.Tensor {
	x := tensor.Tensor{DType: d, Shape: []int{len(values)}}
	if width > 0 {
		x.Shape = []int{len(values) / width, width}
	}
	for _, v := range values {
		bits := uint64(v)
		if d == tensor.F32 {
			bits = uint64(math.Float32bits(float32(v)))
		}
		x.Data = append(x.Data, binary.LittleEndian.AppendUint64(nil, bits)[:d.Bytes(1)]...)
	}
	return x
}

// dumpOf writes steps of two requests as SGLang dumps them, of the rows of one request or of both in each: by the dumper, or a
// file for each step. Row i of request r is of the token 10·r + i, and its embedding begins with that number.
func dumpOf(t *testing.T, passes bool, change func(step int, gives map[string]any), steps ...[][3]int) (dir string) {
	dir = t.TempDir()
	for number, spans := range steps {
		var ids, positions, lengths, embedded, chosen, joined []int
		var rids []string
		for _, s := range spans { // request, from, to
			rids, lengths = append(rids, fmt.Sprint("request ", s[0])), append(lengths, s[2])
			for i := s[1]; i < s[2]; i++ {
				token := 10*s[0] + i
				ids, positions, embedded = append(ids, token), append(positions, i), append(embedded, token, -token)
				chosen = append(chosen, token%4, token%4+1)
				for column := range 48 + 576 { // q_lora_rank, kv_lora_rank + qk_rope_head_dim
					joined = append(joined, 1000*token+column)
				}
			}
		}
		gives := map[string]any{"input_ids": numbered(tensor.I64, 0, ids...), "positions": numbered(tensor.I64, 0, positions...),
			"seq_lens": numbered(tensor.I32, 0, lengths...), "model.embed_tokens.output": numbered(tensor.F32, 2, embedded...),
			"model.layers.0.self_attn.fused_qkv_a_proj_with_mqa.output": numbered(tensor.F32, 48+576, joined...),
			"model.layers.1.mlp.topk.output.0":                          numbered(tensor.F32, 2, slices.Repeat([]int{1, 0}, len(ids))...),
			"model.layers.1.mlp.topk.output.1":                          numbered(tensor.I32, 2, chosen...),
			"model.layers.1.input_layernorm.output.0":                   numbered(tensor.F32, 2, embedded...),
			"model.layers.1.input_layernorm.output.1":                   numbered(tensor.F32, 2, embedded...),
			"model.layers.0.self_attn.attn_mqa.output":                  numbered(tensor.F32, 2, embedded...)}
		if change != nil {
			change(number, gives)
		}
		write := func(name string, values map[string]any) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), saved(t, values), 0o666))
		}
		if !passes {
			gives["rids"] = rids
			for i, name := range slices.Sorted(maps.Keys(gives)) {
				dumped := name
				if strings.HasPrefix(name, "model.") {
					dumped = "non_intrusive__" + name
				}
				write(fmt.Sprintf("step=%d___rank=0___dump_index=%d___name=%s___layer_id=0.pt", number, i, dumped),
					map[string]any{"value": gives[name], "meta": map[string]any{"name": dumped, "step": number}})
			}
			continue
		}
		pass := map[string]any{}
		for _, name := range slices.Sorted(maps.Keys(gives)) {
			module, position, isOutput := strings.Cut(name, ".output")
			switch {
			case !isOutput:
				pass["model.forward_batch_info."+name] = gives[name]
			case position != "":
				of, _ := pass[module].([]any)
				pass[module] = append(of, gives[name])
			default:
				pass[module] = gives[name]
			}
		}
		write(fmt.Sprintf("Pass%05d.pt", number), pass)
	}
	return dir
}

// TestDumps: rows of a dump's steps lie where their requests and positions are, in both of SGLang's formats.
func TestDumps(t *testing.T) {
	t.Parallel()
	file, err := os.Open("../../fixtures/engines/served.json")
	require.NoError(t, err)
	defer file.Close()
	c, err := config.Parse(file)
	require.NoError(t, err)
	for _, passes := range []bool{false, true} {
		dir := dumpOf(t, passes, nil, [][3]int{{0, 0, 3}}, [][3]int{{1, 0, 2}}, [][3]int{{0, 3, 4}, {1, 2, 3}}, [][3]int{{0, 4, 5}})
		require.True(t, pack.IsDump(dir))
		p, err := pack.OpenDump(dir, torchbin.Leaves)
		require.NoError(t, err)
		require.NoError(t, p.Spell(c))
		require.NoError(t, p.Spell(c)) // once more
		in, err := p.Input()
		require.NoError(t, err)
		require.Equal(t, []int{0, 1, 2, 3, 4, 10, 11, 12, 12, 12}, in.InputIDs)
		require.Equal(t, []int{1, 1, 1, 1, 1, 1, 1, 1, 0, 0}, in.AttentionMask)
		require.Equal(t, "5 prefill rows, 3 decode rows of 2 requests, up to 2 in one step", p.Manifest.StepCounts().String())
		for stage, columns := range map[string][2]int{pack.Embedded: {0, 2}, "model.layers.0.output": {0, 2},
			"model.layers.0.self_attn.q_a_proj.output": {0, 48}, "model.layers.0.self_attn.kv_a_proj_with_mqa.output": {48, 48 + 576}} {
			require.Equal(t, []int{2, 5, columns[1] - columns[0]}, p.Manifest.Tensors[stage].Shape)
			values, err := p.Float32s(stage)
			require.NoError(t, err)
			for i, v := range values {
				token, column := in.InputIDs[i/(columns[1]-columns[0])], columns[0]+i%(columns[1]-columns[0])
				want := float32(token * (1 - 2*column)) // of the embedding
				if columns[1] > 2 {
					want = float32(1000*token + column)
				}
				require.Equal(t, want, v, "%s: %d", stage, i)
			}
			part, err := p.Elements(stage, columns[1]-columns[0]-1, 2)
			require.NoError(t, err)
			require.Equal(t, values[columns[1]-columns[0]-1:][:2], part)
		}
		chosen, err := p.Ints("model.layers.1." + pack.TopKIdx)
		require.NoError(t, err)
		require.Equal(t, []int{0, 1, 1, 2, 2, 3, 3, 4, 0, 1}, chosen[:10])
		weights, err := p.Float32s("model.layers.1." + pack.TopKWeight)
		require.NoError(t, err)
		require.Equal(t, []float32{2.5, 0}, weights[:2], "routed_scaling_factor")
		require.Equal(t, []pack.Unread{{Kind: "model.layers.*.self_attn.attn_mqa.output", Count: 4, Why: "tensors that are no stage"}},
			p.Unread)
	}
}

// TestOddDumps: what of a dump cannot be told is refused, or left out and named.
func TestOddDumps(t *testing.T) {
	t.Parallel()
	file, err := os.Open("../../fixtures/engines/served.json")
	require.NoError(t, err)
	defer file.Close()
	c, err := config.Parse(file)
	require.NoError(t, err)
	spans := [][][3]int{{{0, 0, 3}}, {{0, 3, 4}}}
	drop := func(name string) func(int, map[string]any) {
		return func(step int, gives map[string]any) {
			if step == 1 {
				delete(gives, name)
			}
		}
	}
	set := func(name string, to any) func(int, map[string]any) {
		return func(step int, gives map[string]any) { gives[name] = to }
	}
	const embedding, projected = "model.embed_tokens.output", "model.layers.0.self_attn.fused_qkv_a_proj_with_mqa.output"
	for _, odd := range []struct {
		unread string
		change func(int, map[string]any)
		steps  [][][3]int
	}{
		{"model.embed_tokens.output: 1 of 4 rows are not there", drop(embedding), spans},
		{"not kept: model.embed_tokens.output: rows of other tokens", set(embedding, numbered(tensor.F32, 2, 1, 2)), spans[:1]},
		{"16 channels, where the model has 624", set(projected, numbered(tensor.F32, 16, make([]int, 48)...)), spans[:1]},
		{"model.layers.*.mlp.gate.topk_weight: whether routed_scaling_factor is in it is not known",
			set("model.layers.1.mlp.topk.output.0", numbered(tensor.F32, 2, 1, 1, 1, 1, 1, 1)), spans[:1]},
		{"1 request: rows before the first dumped one", nil, [][][3]int{{{0, 0, 3}}, {{1, 2, 4}}}},
		{"step 1: it has no input_ids", drop("input_ids"), [][][3]int{{{0, 0, 3}}, {{1, 0, 4}}}},
	} {
		p, err := pack.OpenDump(dumpOf(t, false, odd.change, odd.steps...), torchbin.Leaves)
		require.NoError(t, err, odd.unread)
		require.NoError(t, p.Spell(c), odd.unread)
		said := ""
		for _, u := range p.Unread {
			said += fmt.Sprintf("%s: %s\n", u.Kind, u.Why)
		}
		require.Contains(t, said, strings.TrimPrefix(odd.unread, "not kept: "))
	}
	for _, refused := range []struct {
		cause  string
		passes bool
		change func(int, map[string]any)
		steps  [][][3]int
	}{
		{"2 requests have 3 tokens, and 1 go on", true, nil, [][][3]int{{{0, 0, 3}}, {{1, 0, 3}}, {{1, 3, 4}}}},
		{"no request was dumped from its first token on", false, nil, [][][3]int{{{0, 2, 4}}}},
		{"positions and seq_lens do not go together", false, set("seq_lens", numbered(tensor.I64, 0, 9)), spans[:1]},
		{"positions, ", false, set("positions", numbered(tensor.I64, 0, 0, 1)), spans[:1]},
		{"whole numbers expected", false, set("input_ids", numbered(tensor.F32, 0, 1)), spans[:1]},
	} {
		_, err := pack.OpenDump(dumpOf(t, refused.passes, refused.change, refused.steps...), torchbin.Leaves)
		require.ErrorContains(t, err, refused.cause)
	}
	dir := dumpOf(t, true, nil, spans...)
	require.NoError(t, os.Rename(filepath.Join(dir, "Pass00001.pt"), filepath.Join(dir, "step=1___rank=1___dump_index=3___name=x.pt")))
	_, err = pack.OpenDump(dir, torchbin.Leaves)
	require.ErrorContains(t, err, "of another rank than 0")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "step=1___rank=1___dump_index=3___name=x.pt"), []byte("cut"), 0o666))
	require.NoError(t, os.Rename(filepath.Join(dir, "step=1___rank=1___dump_index=3___name=x.pt"), filepath.Join(dir, "Pass00001.pt")))
	_, err = pack.OpenDump(dir, torchbin.Leaves)
	require.ErrorContains(t, err, "is not a zip archive")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "manifest.json"), []byte("{}"), 0o666))
	require.False(t, pack.IsDump(dir))
}

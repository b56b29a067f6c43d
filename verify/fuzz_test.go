package verify_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nlpodyssey/safetensors"
	"github.com/stretchr/testify/require"

	"dsmoe/convert/checkpoint"
	"dsmoe/model"
	"dsmoe/text"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// fuzzed are the packs that FuzzVerify changes: of several families, with padding, probes, prediction layers,
// indexers, layers left out, and gradients.
var fuzzed = []string{
	"v1-base/golden-layers-f32", "v1-base/golden-bf16", "v1-base/golden-train-inner", "v2-lite/golden-bf16",
	"v3/golden-probes-f32", "v3/golden-layers-bf16", "v3-mtp/golden-f32", "v32-yarn/golden-f32", "v32/golden-bf16",
	"glm5/golden-bf16", "v4/golden-bf16", "v1-f16/golden-f16", "v3/golden-sdpa-bf16", "v3-fp8/golden-f32",
}

// FuzzVerify: no pack of valid form panics, whatever its numbers, choices, shapes and manifest are. The outcome is a
// report that every form can render, or an error of one line.
func FuzzVerify(f *testing.F) {
	recordings := make([]*recording, len(fuzzed))
	for i, golden := range fuzzed {
		recordings[i] = record(f, golden)
		f.Add(uint8(i), uint8(i), []byte{byte(i), byte(3 * i), byte(7 * i), 1, 2, byte(i)})
	}
	f.Add(uint8(5), uint8(0), []byte{188, 0, 0, 0, 0, 2})                                                                // probabilities in a pack of sdpa
	f.Add(uint8(7), uint8(0), []byte{16, 44, 0, 0, 0, 1})                                                                // scores of an indexer without the mask
	f.Add(uint8(5), uint8(229), []byte{6, 81, 152, 252, 243, 231, 156, 9, 66, 146, 182, 115, 15, 35, 140, 115, 95, 247}) // no input
	f.Fuzz(func(t *testing.T, which, options uint8, edits []byte) {
		dir, recorded := t.TempDir(), recordings[int(which)%len(fuzzed)]
		recorded.mutate(edits).write(dir)
		p, err := pack.Open(dir)
		if err == nil {
			var r *report.Report
			c := recorded.checkpoint
			if r, err = verify.Run(context.Background(), c.Config, c, p, fuzzOptions(options)); err == nil {
				rendered(t, r)
			}
		}
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			require.Less(t, len(err.Error()), 1<<14)
		}
	})
}

// fuzzOptions are options of a number.
func fuzzOptions(n uint8) verify.Options {
	o := verify.Options{Parallelism: 1}
	if n&1 != 0 {
		o.Mode = report.Chained
	}
	if n&2 != 0 {
		o.Accumulate = model.Float32
	}
	switch n >> 2 & 7 {
	case 1:
		o.FailFast = true
	case 2:
		o.Layers = text.Spans{{1, 2}}
	case 3:
		o.Stages = []string{"self_attn.*", "mlp.gate.*"}
	case 4:
		o.Part = &report.Part{Index: 1 + int(n>>5)%3, Of: 3}
	}
	return o
}

// rendered renders a report in all forms.
func rendered(t *testing.T, r *report.Report) {
	t.Helper()
	_, err := json.Marshal(r)
	require.NoError(t, err)
	require.NoError(t, r.WriteText(io.Discard))
	require.NoError(t, r.WriteJUnit(io.Discard, about))
	require.NoError(t, r.WriteHTML(io.Discard, about))
	require.Equal(t, r.Verdict == report.Fail, r.FirstDivergence != nil)
}

// recording is a pack in memory.
type recording struct {
	checkpoint *checkpoint.Checkpoint
	manifest   []byte
	m          map[string]any
	files      map[string]map[string]view
	names      []string // of all tensors
}

// record reads a fixture's pack and opens its checkpoint.
func record(f *testing.F, golden string) *recording {
	f.Helper()
	c, err := checkpoint.Open(fixture(filepath.Dir(golden) + "/checkpoint"))
	require.NoError(f, err)
	f.Cleanup(func() { _ = c.Close() })
	r := &recording{checkpoint: c, manifest: must(os.ReadFile(fixture(golden + "/manifest.json"))),
		files: map[string]map[string]view{}}
	p := must(pack.Open(fixture(golden)))
	for file := range p.Manifest.Files {
		r.files[file] = map[string]view{}
		for _, x := range must(safetensors.Deserialize(must(os.ReadFile(fixture(golden + "/" + file))))).Tensors() {
			r.files[file][x.Name] = view{x.TensorView.DType().String(), x.TensorView.Shape(), x.TensorView.Data()}
		}
	}
	r.names = slices.Sorted(maps.Keys(p.Manifest.Tensors))
	return r
}

// write writes the pack, whose manifest lists what its files hold.
func (r *recording) write(dir string) {
	hashes, tensors := map[string]any{}, map[string]any{}
	for file, content := range r.files {
		if len(content) == 0 {
			continue
		}
		path := filepath.Join(dir, file)
		if err := os.WriteFile(path, must(safetensors.Serialize(content, nil)), 0o600); err != nil {
			panic(err)
		}
		hashes[file] = must(pack.HashFile(path))
		for name, x := range content {
			tensors[name] = map[string]any{"file": file, "dtype": x.dtype, "shape": x.shape}
		}
	}
	r.m["files"], r.m["tensors"] = hashes, tensors
	if err := os.WriteFile(filepath.Join(dir, "manifest.json"), must(json.Marshal(r.m)), 0o600); err != nil {
		panic(err)
	}
}

// mutate returns a copy with edits of six bytes each: what is done, to which tensor (two bytes), where (two bytes),
// and with what.
func (r *recording) mutate(edits []byte) *recording {
	c := &recording{files: map[string]map[string]view{}, names: slices.Clone(r.names)}
	if err := json.Unmarshal(r.manifest, &c.m); err != nil {
		panic(err)
	}
	for file, content := range r.files {
		c.files[file] = maps.Clone(content)
	}
	for edit := range slices.Chunk(edits[:min(len(edits), 6*8)/6*6], 6) {
		c.edit(edit[0], int(binary.LittleEndian.Uint16(edit[1:])), int(binary.LittleEndian.Uint16(edit[3:])), int(edit[5]))
	}
	return c
}

// special are numbers that arithmetic goes wrong on.
var special = []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), math.MaxFloat32, -math.MaxFloat32,
	math.SmallestNonzeroFloat32, 0, float32(math.Copysign(0, -1)), 1, -1, 1e-30, 3e38, -3.4e38, 1e19, -65504, 65520}

// ids are integers that are no ids, or may be.
var ids = []int64{-1, 0, 1, 2, 3, 7, 15, 16, 63, 64, 255, 1 << 31, 1 << 40, math.MaxInt64, math.MinInt64, -2}

// edit changes the tensor of a number, or the manifest.
func (r *recording) edit(what byte, tensor, at, with int) {
	name := r.names[tensor%len(r.names)]
	file, content := r.find(name)
	if file == "" || what >= 160 {
		r.editManifest(int(what), name, at, with)
		return
	}
	x := content[name]
	width := map[string]int{"F32": 4, "I64": 8, "BF16": 2, "F16": 2}[x.dtype]
	switch what / 16 {
	case 0, 1, 2, 3, 4: // an element, a row, a column, all
		x.data = slices.Clone(x.data)
		n, row := len(x.data)/max(width, 1), 1
		if len(x.shape) > 0 {
			row = int(max(x.shape[len(x.shape)-1], 1))
		}
		for i := range n {
			if first := at % n; [...]bool{i == first, i/row == first/row, i%row == first%row, true, i == first}[what/16] {
				put(x, i, with)
			}
		}
	case 5:
		x.shape = reshaped(x.shape, at, with)
		elements := 1
		for _, n := range x.shape {
			elements *= int(n)
		}
		x.data = append(slices.Clone(x.data), make([]byte, 1<<20)...)[:min(elements*width, len(x.data)+1<<20)]
		if len(x.data) != elements*width {
			return
		}
	case 6:
		x.dtype = []string{"F32", "I64", "BF16", "F16", "I32", "F64", "U8", "BOOL"}[with%8]
		elements := 1
		for _, n := range x.shape {
			elements *= int(n)
		}
		size := map[string]int{"F32": 4, "I64": 8, "BF16": 2, "F16": 2, "I32": 4, "F64": 8, "U8": 1, "BOOL": 1}[x.dtype]
		x.data = append(slices.Clone(x.data), make([]byte, elements*8)...)[:elements*size]
	case 7:
		delete(content, name)
		return
	case 8: // another tensor's
		if _, other := r.find(r.names[at%len(r.names)]); other != nil {
			x = other[r.names[at%len(r.names)]]
		}
	case 9:
		renamed := fmt.Sprintf([]string{"model.layers.%d.output", "model.layers.%d.input", "model.layers.%d.mlp.gate.logits",
			"model.layers.%d.self_attn.attn_weights", "model.layers.%d.mlp.experts.3.output", "model.layers.%d.mlp.experts.77.probe.output",
			"model.layers.0%d.mlp.output", "%d", "model.layers.%d.mlp.experts.-1.output", "model.layers.-%d.output",
			"model.layers.%d.self_attn.indexer.topk_idx", "model.layers.%d.mlp.down_proj.input", "model.layers.%d.output.grad",
			"model.rotary_emb.cos%.0d", "model.layers.%d.shared_head.norm.output", "model.layers.%d.self_attn.q_proj.weight.grad",
		}[with%16], at%9)
		delete(content, name)
		name = renamed
		r.names = append(r.names, name)
	}
	content[name] = x
}

// find returns the file that holds a tensor, and what it holds; nothing if the tensor is gone.
func (r *recording) find(name string) (string, map[string]view) {
	for file, content := range r.files {
		if _, ok := content[name]; ok {
			return file, content
		}
	}
	return "", nil
}

// put sets element i of a tensor.
func put(x view, i, with int) {
	switch x.dtype {
	case "F32":
		v := special[with%16]
		if with >= 128 {
			v = math.Float32frombits(binary.LittleEndian.Uint32(x.data[4*i:])) * float32(with-128) / 32
		}
		binary.LittleEndian.PutUint32(x.data[4*i:], math.Float32bits(v))
	case "BF16":
		binary.LittleEndian.PutUint16(x.data[2*i:], uint16(math.Float32bits(special[with%16])>>16)+uint16(with/16))
	case "F16":
		binary.LittleEndian.PutUint16(x.data[2*i:], uint16(with*257))
	case "I64":
		binary.LittleEndian.PutUint64(x.data[8*i:], uint64(ids[with%16]))
	}
}

// reshaped returns another shape.
func reshaped(shape []uint64, at, with int) []uint64 {
	shape = slices.Clone(shape)
	if len(shape) == 0 {
		return []uint64{1}
	}
	axis := at % len(shape)
	switch with % 8 {
	case 0:
		shape[axis] = 0
	case 1:
		shape[axis]++
	case 2:
		shape[axis] = max(1, shape[axis]) - 1
	case 3:
		return slices.Insert(shape, axis, 1)
	case 4:
		slices.Reverse(shape)
	case 5:
		n := uint64(1)
		for _, dim := range shape {
			n *= dim
		}
		return []uint64{n}
	case 6:
		shape[axis] *= 2
	case 7:
		return slices.Delete(shape, axis, axis+1)
	}
	return shape
}

// editManifest changes a member of the manifest.
func (r *recording) editManifest(what int, name string, at, with int) {
	layer, kind := pack.Parse(name).Layer, pack.Parse(name).Within
	member := func(key string) map[string]any {
		if _, ok := r.m[key].(map[string]any); !ok {
			r.m[key] = map[string]any{}
		}
		return r.m[key].(map[string]any)
	}
	number := fmt.Sprint(at % 8)
	switch what % 16 {
	case 0:
		r.m["mode"] = []string{"eval", "train", ""}[with%3]
	case 1:
		r.m["compute_dtype"] = []string{"float32", "bfloat16", "float16", "float64"}[with%4]
	case 2:
		r.m["made_by"] = []string{"from_pretrained", "model.to(dtype)", ""}[with%3]
	case 3:
		r.m["partial"] = []string{"", "because"}[with%2]
	case 4:
		absent := member("absent")
		absent["stages"] = append(slices.Clone(asList(absent["stages"])), kind)
	case 5:
		absent := member("absent")
		absent["layers"] = append(slices.Clone(asList(absent["layers"])), []int{layer, at % 8, -1, 1 << 40}[with%4])
		for _, content := range r.files {
			maps.DeleteFunc(content, func(name string, _ view) bool {
				l := pack.Parse(name).Layer
				return with%2 == 0 && l == layer && l >= 0
			})
		}
	case 6:
		member("layer_inputs")[number] = map[string]any{"kind": []string{"recorded", "seeded", "x"}[with%3],
			"is": pack.InputStage(at % 8), "seed": with}
		if file, content := r.find(pack.InputStage(at % 8)); file != "" && with >= 64 {
			content[pack.OwnInput(at%8)] = content[pack.InputStage(at%8)]
		}
	case 7, 8:
		for l, p := range member("probes") {
			probe := p.(map[string]any)
			list := []string{"rows", "experts"}[with%2]
			probe[list] = append(slices.Clone(asList(probe[list])), float64([]int{0, 3, 7, at, -1}[at%5]))
			member("probes")[l] = probe
		}
	case 9, 10, 11:
		overrides := []string{"rope_theta", "num_experts_per_tok", "rms_norm_eps", "hidden_size", "num_hidden_layers", "n_group",
			"topk_group", "index_topk", "first_k_dense_replace", "norm_topk_prob", "scoring_func", "n_routed_experts", "rope_scaling",
			"tie_word_embeddings", "num_nextn_predict_layers", "sliding_window", "hc_mult", "moe_layer_freq", "aux_loss_alpha",
			"seq_aux", "max_position_embeddings", "routed_scaling_factor", "swiglu_limit", "layer_types", "model_type", "hc_sinkhorn_iters"}
		member("config_overrides")[overrides[at%len(overrides)]] = []any{0, 1, 2, 3, 4, 1e-5, true, false, nil, "softmax", "greedy",
			map[string]any{"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}, 1e30, -1, 8, 16}[with%16]
	case 12:
		member("reference")["attn_implementation"] = []string{"", "eager", "sdpa", "flash_attention_2"}[with%4]
		member("reference")["experts_implementation"] = []string{"eager", "grouped_mm", "deepgemm"}[at%3]
		member("reference")["compiled"] = at%2 == 1
	case 13:
		member("reference")["kind"] = []string{"remote code", "transformers native", "x", ""}[with%4]
	case 14:
		member("noise")[name] = map[string]any{"max_abs": special[3+with%13], "rel_rms": special[3+at%13]}
	case 15:
		config := map[string]any{}
		if err := json.Unmarshal(r.configJSON(), &config); err == nil {
			keys := slices.Sorted(maps.Keys(config))
			config[keys[at%len(keys)]] = []any{0, 1, 2, 3, 4, 1e-5, true, false, nil, "softmax", 1e30, -1, 8, 16, 5, 5e4}[with%16]
			r.m["config"] = config
		}
	}
}

// configJSON returns the config of the manifest.
func (r *recording) configJSON() []byte {
	data, err := json.Marshal(r.m["config"])
	if err != nil || !strings.HasPrefix(string(data), "{") {
		return []byte(`{"model_type":"deepseek"}`)
	}
	return data
}

// asList is a list of a manifest, or none.
func asList(v any) []any {
	list, _ := v.([]any)
	return list
}

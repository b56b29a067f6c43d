package convert

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/format"
	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/plan"
	"dsmoe/convert/safetensors"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// adapterOf opens an adapter.
func adapterOf(t *testing.T, dir string) *checkpoint.Adapter {
	a, err := checkpoint.OpenAdapter(dir)
	require.NoError(t, err)
	t.Cleanup(func() { a.Close() })
	return a
}

// merging returns options that merge an adapter.
func merging(t *testing.T, dir string) plan.Options {
	return plan.Options{Adapter: adapterOf(t, dir), MaxShardBytes: -1}
}

// numbers returns the numbers of a tensor of a file.
func numbers(t *testing.T, f format.File, name string) []float32 {
	x, err := f.Tensor(name)
	require.NoError(t, err, name)
	v, err := x.Float32s(nil)
	require.NoError(t, err)
	return v
}

// TestLoRAIsPeft_every: merged weights are those of peft's merge_and_unload, within its roundings, experts fused or apart.
// Weights that peft did not change are the base's.
func TestLoRAIsPeft_every(t *testing.T) {
	samples, err := format.OpenFile(fixture.Path(t, "lora/merged.safetensors"), safetensors.Format().Open)
	require.NoError(t, err)
	defer samples.Close()
	unit := func(x float64) float64 { return math.Ldexp(1, math.Ilogb(math.Max(math.Abs(x), 0x1p-126))-7) } // of BF16
	for adapter, base := range map[string]string{"mla": "v3", "fused": "v3", "experts": "v2-lite", "square": "glm4-moe"} {
		if adapter != "mla" && adapter != "experts" && !configtest.Every(t) {
			continue
		}
		o, src := merging(t, fixture.Path(t, "lora/"+adapter)), fixture.Path(t, base+"/checkpoint")
		o.Experts = plan.FusedExperts
		merged := converted(t, src, o)
		apart := merging(t, fixture.Path(t, "lora/"+adapter))
		apart.Experts = plan.PerExpert
		fixture.RequireSameTensors(t, open(t, merged), open(t, converted(t, converted(t, src, apart), plan.Options{Experts: plan.FusedExperts, MaxShardBytes: -1})))
		got, before := open(t, merged), open(t, converted(t, src, plan.Options{Experts: plan.FusedExperts, MaxShardBytes: -1}))
		changed := 0
		for info := range got.Tensors() {
			x, err := got.Tensor(info.Name)
			require.NoError(t, err)
			was, err := before.Tensor(info.Name)
			require.NoError(t, err)
			key := adapter + "/" + info.Name
			if _, _, listed := samples.Lookup(key); !listed {
				require.True(t, bytes.Equal(was.Data, x.Data), key)
				continue
			}
			changed++
			all, err := x.Float32s(nil)
			require.NoError(t, err)
			old, err := was.Float32s(nil)
			require.NoError(t, err)
			want, places := numbers(t, samples, key), indices(t, samples, key+".at")
			for i, at := range places {
				y, z := float64(all[at]), float64(want[i])
				limit := max(unit(y), unit(z))
				if strings.Contains(key, ".mlp.") || strings.Contains(key, "embed") { // where peft rounds the product, too
					limit += unit(y-float64(old[at])) / 2
				}
				require.InDelta(t, z, y, limit, "%s: element %d", key, at)
			}
		}
		require.Equal(t, map[string]int{"mla": 9, "fused": 3, "experts": 3, "square": 8}[adapter], changed, adapter)
	}
}

// indices returns the numbers of an I32 tensor.
func indices(t *testing.T, f format.File, name string) (all []int) {
	x, err := f.Tensor(name)
	require.NoError(t, err, name)
	for b := x.Data; len(b) > 0; b = b[4:] {
		all = append(all, int(b[0])|int(b[1])<<8|int(b[2])<<16)
	}
	return all
}

// writeAdapter writes an adapter with factors of a rank: of each module in shapes, rows and columns of its matrix.
// Tensors with other names are kept as they are.
func writeAdapter(t *testing.T, rank int, shapes map[string][2]int, config map[string]any) string {
	dir := t.TempDir()
	var infos []tensor.Info
	for _, module := range slices.Sorted(maps.Keys(shapes)) {
		infos = append(infos, tensor.Info{Name: module + ".lora_A.weight", DType: tensor.F32, Shape: []int{rank, shapes[module][1]}},
			tensor.Info{Name: module + ".lora_B.weight", DType: tensor.F32, Shape: []int{shapes[module][0], rank}})
	}
	writeFactors(t, dir, infos, nil)
	all := map[string]any{"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": []string{}}
	maps.Copy(all, config)
	text, err := json.Marshal(all)
	require.NoError(t, err)
	fixture.Write(t, dir, checkpoint.AdapterConfig, string(text))
	return dir
}

// writeFactors writes an adapter's tensors, with these numbers, or random ones.
func writeFactors(t *testing.T, dir string, infos []tensor.Info, numbers map[string][]float32) {
	l, err := safetensors.Format().Layout(slices.Clone(infos), format.Head{})
	require.NoError(t, err)
	data := bytes.Clone(l.Header())
	rng := rand.New(rand.NewPCG(1, 2))
	for _, info := range l.Infos {
		x := make([]float32, info.Len())
		for i := range x {
			x[i] = float32(0.1 * rng.NormFloat64())
		}
		copy(x, numbers[info.Name])
		at := len(data)
		data = append(data, make([]byte, 4*len(x))...)
		tensor.PutFloat32s(data[at:], x)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "adapter_model.safetensors"), data, 0o666))
}

const peftPrefix = "base_model.model."

// TestLoRAOnStoredForms: all checkpoints of fixtures/forms hold the same numbers, in every form with scales. An adapter
// merged into any gives the same bits.
func TestLoRAOnStoredForms(t *testing.T) {
	shapes := map[string][2]int{}
	for _, module := range []string{"layers.0.self_attn.o_proj", "layers.1.self_attn.kv_b_proj", "layers.1.mlp.experts.2.gate_proj",
		"layers.1.mlp.experts.3.down_proj", "layers.1.mlp.shared_experts.up_proj"} {
		c := open(t, fixture.Path(t, "forms/bf16"))
		x, err := c.Tensor("model." + module + ".weight")
		require.NoError(t, err)
		shapes[peftPrefix+"model."+module] = [2]int(x.Shape)
	}
	dir := writeAdapter(t, 3, shapes, nil)
	var want *checkpoint.Checkpoint
	entries, err := os.ReadDir(fixture.Path(t, "forms"))
	require.NoError(t, err)
	tried := 0
	for _, e := range append([]os.DirEntry{nil}, entries...) {
		name := "bf16"
		if e != nil {
			name = e.Name()
		}
		path := fixture.Path(t, "forms") + "/" + name
		if _, err := os.Stat(path + "/config.json"); err != nil {
			continue
		}
		o := merging(t, dir)
		o.DType = tensor.BF16
		got := open(t, converted(t, path, o))
		if want == nil {
			want = got
		}
		for info := range want.Tensors() {
			x, err := want.Tensor(info.Name)
			require.NoError(t, err)
			y, err := got.Tensor(got.Config.Prefix() + info.Name)
			require.NoError(t, err)
			require.True(t, bytes.Equal(x.Data, y.Data), "%s: %s", name, info.Name)
		}
		tried++
		if c := open(t, path); name != "bf16" && c.Config.Quantization.Announced() {
			_, err := Plan(c, Options{Options: merging(t, dir)})
			require.ErrorContains(t, err, "--type bf16 decodes the weights, and merges", name)
		}
	}
	require.Greater(t, tried, 12)
}

// TestLoRAIsWhole: each thing that is wrong with an adapter is a problem, and nothing is written.
func TestLoRAIsWhole(t *testing.T) {
	const o, gate = peftPrefix + "model.layers.1.self_attn.o_proj", peftPrefix + "model.layers.2.mlp.experts"
	shapes := func(more ...any) map[string][2]int {
		all := map[string][2]int{o: {64, 80}}
		for i := 0; i < len(more); i += 2 {
			all[more[i].(string)] = more[i+1].([2]int)
		}
		return all
	}
	for want, c := range map[string]struct {
		shapes map[string][2]int
		config map[string]any
	}{
		"peft_type is IA3: only LORA is merged":                                                                                            {shapes(), map[string]any{"peft_type": "IA3"}},
		"use_dora is set: DoRA scales each row":                                                                                            {shapes(), map[string]any{"use_dora": true}},
		"lora_bias is set: a bias of lora_B is not merged":                                                                                 {shapes(), map[string]any{"lora_bias": true}},
		"new_config: unknown key; what it changes is not known":                                                                            {shapes(), map[string]any{"new_config": map[string]any{"a": 1}}},
		`init_lora_weights is "pissa_niter_4", which changes the base's weights`:                                                           {shapes(), map[string]any{"init_lora_weights": "pissa_niter_4"}},
		"lora_A.weight: has rank 3, but adapter_config.json gives 5":                                                                       {shapes(), map[string]any{"r": 5}},
		"lora_A.weight: has rank 3, but adapter_config.json gives 4":                                                                       {shapes(), map[string]any{"rank_pattern": map[string]any{"o_proj": 4}}},
		"selects: lm_head (modules_to_save)":                                                                                               {shapes(), map[string]any{"modules_to_save": []string{"lm_head"}}},
		"lora_alpha is 0, or missing":                                                                                                      {shapes(), map[string]any{"lora_alpha": 0}},
		"lora_A.weight: has rank 3, but adapter_config.json gives -1":                                                                      {shapes(), map[string]any{"rank_pattern": map[string]any{"o_proj": -1}}},
		"r is 0, or missing: a positive number is expected":                                                                                {shapes(), map[string]any{"r": 0}},
		"lora_A.weight: changes a matrix [64 64], but model.layers.1.self_attn.o_proj.weight is":                                           {map[string][2]int{o: {64, 64}}, nil},
		"layers.1.self_attn.qkv_proj.lora_A.weight: the base has no such module":                                                           {shapes(peftPrefix+"model.layers.1.self_attn.qkv_proj", [2]int{64, 64}), nil},
		"layers.9.self_attn.o_proj.lora_A.weight: the base has no such module":                                                             {shapes(peftPrefix+"model.layers.9.self_attn.o_proj", [2]int{64, 80}), nil},
		"experts.lora_A.weight: changes matrices [48 65], which no fused experts":                                                          {shapes(gate, [2]int{48, 65}), nil},
		"experts.lora_A.weight: has 3 rows, but rank 3 of 16 experts gives 48":                                                             {shapes(gate, [2]int{48, 64}), nil},
		"the pattern ( is not understood":                                                                                                  {shapes(), map[string]any{"alpha_pattern": map[string]any{"(": 4}}},
		"lacks modules that adapter_config.json selects: model.layers.0.self_attn.o_proj, model.layers.2.self_attn.o_proj, model.layers.3": {shapes(), map[string]any{"target_modules": []string{"o_proj"}}},
		"selects: model.layers.2.self_attn.o_proj":                                                                                         {shapes(), map[string]any{"target_modules": `.*\.[12]\.self_attn\.o_proj`}},
		"selects: model.layers.3.self_attn.o_proj":                                                                                         {shapes(), map[string]any{"target_modules": []string{"o_proj"}, "layers_to_transform": []int{1, 3}}},
	} {
		a, err := checkpoint.OpenAdapter(writeAdapter(t, 3, c.shapes, c.config))
		if err == nil {
			_, err = Plan(open(t, fixture.Path(t, "v3/checkpoint")), Options{Options: plan.Options{Adapter: a}})
			a.Close()
		}
		require.ErrorContains(t, err, want, want)
	}
	for name, change := range map[string]string{
		"has no lora_B": "lora_B.weight", "the module has no lora_A": "lora_A.weight",
	} {
		dir := writeAdapter(t, 3, shapes(), nil)
		fixture.Replace(t, dir, "adapter_model.safetensors", "o_proj."+change, "p_proj."+change)
		_, err := Plan(open(t, fixture.Path(t, "v3/checkpoint")), Options{Options: merging(t, dir)})
		require.ErrorContains(t, err, name)
		require.ErrorContains(t, err, "2 problems", "each half of the pair")
	}
	dir := writeAdapter(t, 3, shapes(), nil)
	fixture.Poke(t, filepath.Join(dir, "adapter_model.safetensors"), int64(len(fixture.Read(t, dir, "adapter_model.safetensors")))-4, "\x00\x00\xc0\x7f")
	_, err := Plan(open(t, fixture.Path(t, "v3/checkpoint")), Options{Options: merging(t, dir)})
	require.ErrorContains(t, err, "lora_B.weight: 1 element infinite or NaN")
	for _, to := range []plan.Options{{Format: "gguf"}, {DType: tensor.F8E4M3}} {
		to.Adapter = adapterOf(t, writeAdapter(t, 3, shapes(), nil))
		_, err = Plan(open(t, fixture.Path(t, "v3/checkpoint")), Options{Options: to})
		require.ErrorContains(t, err, "an adapter is merged into safetensors in F32, F16 or BF16")
	}
}

// TestLoRAIsBound: the plan and the manifest name the adapter's bytes; an output of another adapter is another, and one
// whose adapter changed while it was written is refused.
func TestLoRAIsBound(t *testing.T) {
	shapes := map[string][2]int{peftPrefix + "model.layers.1.self_attn.o_proj": {64, 80}}
	dir, src := writeAdapter(t, 3, shapes, nil), fixture.Path(t, "v3/checkpoint")
	dst := filepath.Join(t.TempDir(), "out")
	run := func() (*Report, error) {
		return Run(context.Background(), dst, open(t, src), Options{Options: merging(t, dir), Settings: inMemory()})
	}
	r, err := run()
	require.NoError(t, err)
	require.Equal(t, 1, r.Operations["merge-lora BF16"])
	require.Equal(t, r.Tensors-1, r.Exact)
	hashes := adapterOf(t, dir).Hashes
	manifest := fixture.Read(t, dst, plan.ManifestName)
	for _, hash := range hashes {
		require.Contains(t, manifest, fmt.Sprintf(`"identity": %q`, hash))
	}
	again, err := run()
	require.NoError(t, err)
	require.True(t, again.Already)
	fixture.Flip(t, filepath.Join(dir, "adapter_model.safetensors"), int64(len(fixture.Read(t, dir, "adapter_model.safetensors")))-1)
	_, err = run()
	require.ErrorContains(t, err, "adapter_model.safetensors: has another header in the source")
	fixture.Flip(t, filepath.Join(dir, "adapter_model.safetensors"), int64(len(fixture.Read(t, dir, "adapter_model.safetensors")))-1)
	fixture.Replace(t, dir, checkpoint.AdapterConfig, `"lora_alpha":6`, `"lora_alpha":7`)
	_, err = run()
	require.ErrorContains(t, err, "adapter_config.json: has another header in the source")
}

// TestLoRAWherever: an adapter gives the same weights before experts are dropped or after, in a GGUF file of the same
// numbers, in parts and in little memory.
func TestLoRAWherever(t *testing.T) {
	src, fused := fixture.Path(t, "v3/checkpoint"), fixture.Path(t, "lora/fused")
	o := merging(t, fused)
	o.DType = tensor.F32
	want := converted(t, src, o)

	pruned := o
	pruned.Prune = plan.Prune{All: text.Spans{{0, 3}, {8, 11}}}
	later := pruned
	later.Adapter = nil
	fixture.RequireSameTensors(t, open(t, converted(t, want, later)), open(t, converted(t, src, pruned)))

	file := converted(t, src, plan.Options{Format: "gguf", DType: tensor.F32, NoVocab: true, MaxShardBytes: -1})
	got := open(t, converted(t, file, o))
	for info := range got.Tensors() {
		if !strings.HasSuffix(info.Name, "e_score_correction_bias") { // F32 in GGUF
			x, err := open(t, want).Tensor(info.Name)
			require.NoError(t, err)
			y, err := got.Tensor(info.Name)
			require.NoError(t, err)
			require.Equal(t, x, y, info.Name)
		}
	}

	dst, parts := filepath.Join(t.TempDir(), "out"), 7
	for i := range parts {
		s := inMemory()
		s.Part = plan.Part{I: i + 1, N: parts}
		_, err := RunPart(t.Context(), dst, open(t, src), Options{o, s})
		require.NoError(t, err)
	}
	s := inMemory()
	s.Finish, s.Memory = true, 64<<20
	_, err := Run(t.Context(), dst, open(t, src), Options{o, s})
	require.NoError(t, err)
	require.Equal(t, fixture.Sums(t, want), fixture.Sums(t, dst))

	some := o
	some.Layers = plan.Layers{{0, 1}}
	p, err := Plan(open(t, src), Options{Options: some})
	require.NoError(t, err)
	require.Contains(t, strings.Join(p.Notes, "\n"), "the adapter changes 49 weights that are left out")
}

// TestLoRAOfOlderPeft: before peft 0.19, A of fused experts is of the rows of their matrices, and B of the columns. Of
// square matrices only the version tells.
func TestLoRAOfOlderPeft(t *testing.T) {
	const rank = 2
	for base, experts := range map[string]int{"v3": 16, "glm4-moe": 8} {
		src, module := fixture.Path(t, base+"/checkpoint"), peftPrefix+"model.layers.2.mlp.experts"
		shapes := map[string][2]int{module: {64, 24}, module + ".base_layer": {48, 64}}
		config := map[string]any{"r": rank}
		if base == "glm4-moe" {
			shapes = map[string][2]int{module: {64, 64}}
			_, err := Plan(open(t, src), Options{Options: merging(t, writeAdapter(t, rank*experts, shapes, config))})
			require.ErrorContains(t, err, "without peft_version which factor is of their rows is not known")
			config["peft_version"] = "0.19.1"
		}
		dir := writeAdapter(t, rank*experts, shapes, config)
		f, err := format.OpenFile(filepath.Join(dir, "adapter_model.safetensors"), safetensors.Format().Open)
		require.NoError(t, err)
		defer f.Close()
		older := map[string][]float32{}
		var infos []tensor.Info
		for m := range shapes {
			a, b := numbers(t, f, m+".lora_A.weight"), numbers(t, f, m+".lora_B.weight")
			all := rank * experts
			cols, rows := len(a)/all, len(b)/all
			left, right := make([]float32, len(b)), make([]float32, len(a))
			for e := range experts {
				for k := range rank {
					for i := range rows {
						left[(e*rank+k)*rows+i] = b[i*all+k*experts+e]
					}
					for i := range cols {
						right[i*all+k*experts+e] = a[(e*rank+k)*cols+i]
					}
				}
			}
			older[m+".lora_A.weight"], older[m+".lora_B.weight"] = left, right
			infos = append(infos, tensor.Info{Name: m + ".lora_A.weight", DType: tensor.F32, Shape: []int{all, rows}},
				tensor.Info{Name: m + ".lora_B.weight", DType: tensor.F32, Shape: []int{cols, all}})
		}
		want := converted(t, src, merging(t, dir))
		writeFactors(t, dir, infos, older)
		if base == "glm4-moe" {
			fixture.Replace(t, dir, checkpoint.AdapterConfig, "0.19.1", "0.18.1")
		}
		fixture.RequireSameTensors(t, open(t, want), open(t, converted(t, src, merging(t, dir))))
	}
}

// TestLoRAOfEmbedding: peft saves an embedding, and perhaps the head, with the factors: the product is added to what it
// saved. Where embedding and head are one weight, a change of one of two stored tensors is refused.
func TestLoRAOfEmbedding(t *testing.T) {
	src, dir := fixture.Path(t, "v3/checkpoint"), t.TempDir()
	infos := []tensor.Info{{Name: peftPrefix + "model.embed_tokens.base_layer.weight", DType: tensor.F32, Shape: []int{256, 64}},
		{Name: peftPrefix + "model.embed_tokens.lora_embedding_A", DType: tensor.F32, Shape: []int{2, 256}},
		{Name: peftPrefix + "model.embed_tokens.lora_embedding_B", DType: tensor.F32, Shape: []int{64, 2}},
		{Name: peftPrefix + "lm_head.weight", DType: tensor.F32, Shape: []int{256, 64}}}
	fixture.Write(t, dir, checkpoint.AdapterConfig, `{"peft_type": "LORA", "r": 2, "lora_alpha": 3, "target_modules": ["embed_tokens"]}`)
	writeFactors(t, dir, infos, nil)
	f, err := format.OpenFile(filepath.Join(dir, "adapter_model.safetensors"), safetensors.Format().Open)
	require.NoError(t, err)
	defer f.Close()
	o := merging(t, dir)
	o.DType = tensor.F32
	out, err := format.OpenFile(converted(t, src, o)+"/model.safetensors", safetensors.Format().Open)
	require.NoError(t, err)
	defer out.Close()
	w, a, b := numbers(t, f, infos[0].Name), numbers(t, f, infos[1].Name), numbers(t, f, infos[2].Name)
	for i, got := range numbers(t, out, "model.embed_tokens.weight") {
		sum := float64(w[i])
		for k := range 2 {
			sum += 1.5 * float64(b[i%64*2+k]) * float64(a[k*256+i/64])
		}
		require.Equal(t, float32(sum), got)
	}
	require.Equal(t, numbers(t, f, infos[3].Name), numbers(t, out, "lm_head.weight"))

	tied := fixture.Clone(t, src)
	fixture.Replace(t, tied, "config.json", `"tie_word_embeddings": false`, `"tie_word_embeddings": true`)
	_, err = Plan(open(t, tied), Options{Options: merging(t, dir)})
	require.ErrorContains(t, err, "embedding and head are one weight (tie_word_embeddings)")
}

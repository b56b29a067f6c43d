package convert

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/format"
	"dsmoe/convert/gguf"
	"dsmoe/convert/internal/disk"
	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/plan"
	"dsmoe/convert/safetensors"
	"dsmoe/model/synth"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text/problem"
)

func open(t testing.TB, path string) *checkpoint.Checkpoint {
	t.Helper()
	c, err := checkpoint.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// inMemory are settings under which nothing is synced: no test here is about crashes.
func inMemory() Settings { return Settings{Disk: &disk.Disk{NoSync: true}} }

// converted converts the checkpoint at src into a new directory.
func converted(t testing.TB, src string, o plan.Options) string {
	t.Helper()
	dst := filepath.Join(t.TempDir(), "out")
	r, err := Run(t.Context(), dst, open(t, src), Options{o, inMemory()})
	require.NoError(t, err)
	require.True(t, r.Verified)
	c, err := Check(t.Context(), dst, Settings{})
	require.NoError(t, err)
	require.Empty(t, c.Problems)
	require.Equal(t, r.Bytes, c.Bytes)
	require.Equal(t, r.Tensors, c.Tensors)
	fixture.RequireEntries(t, filepath.Dir(dst), "out")
	return dst
}

// TestThereAndBack: other shards, fused, per expert again: every tensor's bytes are
// the source's.
func TestThereAndBack(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"v2-lite", "v3", "v3-fp8"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src := fixture.Path(t, name+"/checkpoint")
			sharded := converted(t, src, plan.Options{MaxShardBytes: 100_000})
			fused := converted(t, sharded, plan.Options{Experts: plan.FusedExperts, AllowFP8Fused: true, MaxShardBytes: -1})
			for info := range open(t, fused).Tensors() {
				require.Negative(t, table.PlaceOf(nil, info.Name).Expert, info.Name)
			}
			fixture.RequireSameTensors(t, open(t, src), open(t, sharded))
			fixture.RequireSameTensors(t, open(t, src), open(t, converted(t, fused, plan.Options{Experts: plan.PerExpert})))
			require.Equal(t, fixture.Read(t, src, checkpoint.ConfigName), fixture.Read(t, fused, checkpoint.ConfigName))
		})
	}
}

// TestFusedIsTransformers: fused experts are what transformers 5 writes.
func TestFusedIsTransformers(t *testing.T) {
	t.Parallel()
	want, apart := fixture.Path(t, "v3/checkpoint-fused"), fixture.Path(t, "v3/checkpoint")
	fixture.RequireSameTensors(t, open(t, want), open(t, converted(t, apart, plan.Options{Experts: plan.FusedExperts})))
	fixture.RequireSameTensors(t, open(t, want), open(t, converted(t, want, plan.Options{})))
	fixture.RequireSameTensors(t, open(t, apart), open(t, converted(t, want, plan.Options{Experts: plan.PerExpert})))
}

// TestDequantised: FP8 becomes what the reference makes of it, per expert or fused
// on the way, and the config no longer promises FP8.
func TestDequantised(t *testing.T) {
	t.Parallel()
	src := fixture.Path(t, "v3-fp8/checkpoint")
	direct := converted(t, src, plan.Options{DType: tensor.BF16})
	by := converted(t, converted(t, src, plan.Options{Experts: plan.FusedExperts, AllowFP8Fused: true}),
		plan.Options{DType: tensor.BF16, Experts: plan.PerExpert})
	got := open(t, direct)
	fixture.RequireSameTensors(t, got, open(t, by))
	require.NotContains(t, fixture.Read(t, direct, checkpoint.ConfigName), "quantization_config")
	sample, err := safetensors.Open(fixture.Path(t, "v3-fp8/dequantised-bf16/sample.safetensors"))
	require.NoError(t, err)
	defer sample.Close()
	for info := range sample.Tensors() {
		want, err := sample.Tensor(info.Name)
		require.NoError(t, err)
		have, err := got.Tensor(info.Name)
		require.NoError(t, err)
		require.Equal(t, string(want.Data), string(have.Data), info.Name)
	}
}

// TestCastThereAndBack: what F32 can hold comes back.
func TestCastThereAndBack(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]tensor.DType{"v3": tensor.BF16, "v1-top1-noshared": tensor.F16} {
		src := fixture.Path(t, name+"/checkpoint")
		wide := converted(t, src, plan.Options{DType: tensor.F32})
		back := converted(t, wide, plan.Options{DType: d})
		fixture.RequireSameTensors(t, open(t, src), open(t, back))
		require.Contains(t, fixture.Read(t, wide, checkpoint.ConfigName), `dtype": "float32"`)
		require.Equal(t, fixture.Read(t, src, checkpoint.ConfigName), fixture.Read(t, back, checkpoint.ConfigName))
	}
}

// TestBitsSurvive: NaNs of any payload and −0 go through copies and fusing.
func TestBitsSurvive(t *testing.T) {
	t.Parallel()
	dir := fixture.Clone(t, fixture.Path(t, "v3/checkpoint"))
	const odd = "\x81\x7f\xff\xff\x00\x80\x80\xff\x01\x00"
	const expert = "model.layers.3.mlp.experts.5.up_proj.weight"
	src := open(t, dir)
	for _, name := range []string{"model.embed_tokens.weight", expert} {
		file, offset, err := src.Place(name)
		require.NoError(t, err)
		fixture.Poke(t, filepath.Join(dir, src.Inventory.Files[file].Name), offset, odd)
	}
	out := converted(t, converted(t, dir, plan.Options{Experts: plan.FusedExperts}), plan.Options{Experts: plan.PerExpert, MaxShardBytes: 1 << 18})
	fixture.RequireSameTensors(t, open(t, dir), open(t, out))
	wide := open(t, converted(t, dir, plan.Options{DType: tensor.F32}))
	got, err := wide.Tensor(expert)
	require.NoError(t, err)
	require.Equal(t, "\x00\x00\x81\x7f\x00\x00\xff\xff\x00\x00\x00\x80\x00\x00\x80\xff\x00\x00\x01\x00", string(got.Data[:20]))
}

// TestDecoderAlone: a decoder saved without its head and without "model." before its
// names is the same weights, under the table's names.
func TestDecoderAlone(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v1-dense/checkpoint"))
	dir := fixture.Clone(t, src.Dir)
	data := fixture.Read(t, dir, "model.safetensors")
	// Other tensors of the same total length of names keep the header's length.
	data = strings.ReplaceAll(data, `"model.`, `"`)
	header := strings.LastIndex(data[:100_000], "}}") + 2
	padding := strings.Count(fixture.Read(t, src.Dir, "model.safetensors")[:header+10_000], `"model.`) * len("model.")
	data = data[:header] + strings.Repeat(" ", padding) + data[header:]
	fixture.Write(t, dir, "model.safetensors", data)
	fixture.RequireSameTensors(t, src, open(t, converted(t, dir, plan.Options{})))
}

// TestFewerLayers is a smaller model, which opens and fits its config.
func TestFewerLayers(t *testing.T) {
	t.Parallel()
	c := open(t, converted(t, fixture.Path(t, "v3/checkpoint"), plan.Options{Layers: plan.Layers{{0, 2}}}))
	require.Equal(t, 3, c.Config.NumHiddenLayers)
	require.Zero(t, c.Config.NumNextNPredictLayers)
	require.NoError(t, weights.New(c.Config, c).Check(c.Config))
}

func TestCarriedFiles(t *testing.T) {
	t.Parallel()
	dir := fixture.Clone(t, fixture.Path(t, "v3/checkpoint"))
	for _, name := range []string{"tokenizer.json", "README.md", "modeling_deepseek.py", "optimizer.pt", "rng.bin", "other.gguf", ".gitattributes"} {
		fixture.Write(t, dir, name, name)
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "figures"), 0o755))
	fixture.Link(t, filepath.Join(dir, "README.md"), filepath.Join(dir, "LICENSE"))
	dst := filepath.Join(t.TempDir(), "out")
	r, err := Run(t.Context(), dst, open(t, dir), Options{Settings: inMemory()})
	require.NoError(t, err)
	require.Equal(t, []string{"LICENSE", "README.md", "generation_config.json", "modeling_deepseek.py", "tokenizer.json"}, r.Carried)
	require.Equal(t, []string{".gitattributes", "figures", "optimizer.pt", "other.gguf", "rng.bin"}, r.Left)
	require.Equal(t, "README.md", fixture.Read(t, dst, "LICENSE"))
	fixture.RequireEntries(t, dst, "LICENSE", "README.md", checkpoint.ConfigName, plan.ManifestName, "generation_config.json", "model.safetensors", "modeling_deepseek.py", "tokenizer.json")
}

func TestOverlapIsRefused(t *testing.T) {
	t.Parallel()
	dir := fixture.Clone(t, fixture.Path(t, "v3/checkpoint"))
	src := open(t, dir)
	before := fixture.Sums(t, dir)
	elsewhere := t.TempDir()
	fixture.Link(t, dir, filepath.Join(elsewhere, "link"))
	for dst, want := range map[string]string{
		dir:                                         "is the source itself",
		filepath.Join(dir, "out"):                   "is inside the source",
		filepath.Join(dir, "a", "out"):              "is inside the source",
		filepath.Join(elsewhere, "link"):            "is the source itself",
		filepath.Join(elsewhere, "link", "out"):     "is inside the source",
		filepath.Dir(dir):                           "directory is not empty",
		filepath.Join(elsewhere, "no", "such"):      "does not exist",
		filepath.Join(dir, "..", "checkpoint", "x"): "is inside the source",
	} {
		_, err := Run(t.Context(), dst, src, Options{})
		require.ErrorContains(t, err, want, dst)
	}
	index := open(t, filepath.Join(dir, safetensors.Format().Index))
	for _, dst := range []string{dir, filepath.Join(dir, "out"), filepath.Join(elsewhere, "link", "out")} {
		_, err := Run(t.Context(), dst, index, Options{})
		require.ErrorContains(t, err, "the source", "given by its index")
	}
	cache := filepath.Join(t.TempDir(), "models--x--y")
	require.NoError(t, os.CopyFS(filepath.Join(cache, "snapshots", "aa"), os.DirFS(dir)))
	for _, dst := range []string{filepath.Join(cache, "out"), filepath.Join(cache, "snapshots", "aa", "out")} {
		_, err := Run(t.Context(), dst, open(t, cache), Options{})
		require.ErrorContains(t, err, "is inside the source")
	}
	require.Equal(t, before, fixture.Sums(t, dir))
	_, err := Run(t.Context(), filepath.Join(elsewhere, "out"), src, Options{Settings: Settings{Memory: 1000}})
	require.ErrorContains(t, err, "is too little")
}

// TestSynthesise: the same rule gives the same bytes in any shards, and the output says
// that it was not compared with anything.
func TestSynthesise(t *testing.T) {
	t.Parallel()
	document := fixture.Read(t, fixture.Path(t, "v1-base/checkpoint"), checkpoint.ConfigName)
	c, err := config.Parse(strings.NewReader(document))
	require.NoError(t, err)
	source := synth.New(c, 3)
	s := plan.Synthetic{Tensors: slices.Collect(source.Tensors()), Config: []byte(document), Rule: "seed 3", Fill: source.Fill}
	var made []*checkpoint.Checkpoint
	for _, limit := range []int64{0, 100_000, -1} {
		p, err := plan.Synthesis(s, limit)
		require.NoError(t, err)
		dst := filepath.Join(t.TempDir(), "out")
		r, err := Synthesise(t.Context(), dst, p, inMemory())
		require.NoError(t, err)
		require.False(t, r.Verified)
		require.Equal(t, map[string]int{"make seed 3": len(s.Tensors)}, r.Operations)
		again, err := Synthesise(t.Context(), dst, p, inMemory())
		require.NoError(t, err)
		require.True(t, again.Already)
		made = append(made, open(t, dst))
	}
	for _, m := range made[1:] {
		fixture.RequireSameTensors(t, made[0], m)
	}
	for info := range made[0].Tensors() {
		want, err := source.Tensor(info.Name)
		require.NoError(t, err)
		got, err := made[0].Tensor(info.Name)
		require.NoError(t, err)
		require.Equal(t, want, got, info.Name)
	}
}

// TestReproducesPython writes a checkpoint that Python wrote, byte by byte.
func TestReproducesPython(t *testing.T) {
	t.Parallel()
	src := fixture.Path(t, "v1-dense/checkpoint")
	dst := converted(t, src, plan.Options{})
	fixture.Remove(t, dst, plan.ManifestName)
	require.Equal(t, fixture.Sums(t, src), fixture.Sums(t, dst))
}

// TestListOfTensorsFitsMemory_every: a model with too many tensors for the memory is refused with
// the size that is enough before it is planned, and a synthesis before anything is written.
func TestListOfTensorsFitsMemory_every(t *testing.T) {
	t.Parallel()
	c := configtest.Fixture(t, "states/deepseek-v3")
	dir, elsewhere := t.TempDir(), t.TempDir()
	var infos []tensor.Info
	for s := range table.FamilyOf(c).Slots(c) {
		infos = append(infos, s.Info(tensor.BF16))
	}
	fixture.Sparse(t, dir, safetensors.Format(), infos, 5_000_000_000)
	fixture.Write(t, dir, checkpoint.ConfigName, string(c.JSON()))
	src := open(t, dir)
	tight := Settings{Memory: 64 << 20}
	refused := func(err error) (enough int64) {
		t.Helper()
		var e *problem.Error
		require.ErrorAs(t, err, &e)
		require.ErrorContains(t, err, "its list of tensors does not fit in 64.00 MiB of memory")
		_, err = fmt.Sscanf(e.Problems[0].Hint, "--max-memory %dMiB is enough", &enough)
		require.NoError(t, err)
		return enough << 20
	}
	_, err := Run(t.Context(), filepath.Join(elsewhere, "out"), src, Options{Settings: tight})
	enough := refused(err)
	_, err = Plan(src, Options{Settings: tight})
	require.Equal(t, enough, refused(err))
	for _, o := range []plan.Options{{DType: tensor.F32}, {Experts: plan.FusedExperts, DType: tensor.F16}} {
		if o.DType == tensor.F32 && !configtest.Every(t) {
			continue
		}
		p, err := Plan(src, Options{o, Settings{Memory: enough}})
		require.NoError(t, err)
		require.NoError(t, Settings{Memory: enough}.CheckPlan("out", p))
	}

	for _, x := range infos[:20_000] {
		infos = append(infos, tensor.Info{Name: "further." + x.Name, DType: x.DType, Shape: x.Shape})
	}
	p, err := plan.Synthesis(plan.Synthetic{Tensors: infos, Config: []byte("{}"), Rule: "none"}, -1)
	require.NoError(t, err)
	_, err = Synthesise(t.Context(), filepath.Join(elsewhere, "out"), p, tight)
	require.NoError(t, Settings{Memory: refused(err)}.CheckPlan("out", p))
	fixture.RequireEntries(t, elsewhere)
}

// TestUnknownInGGUF: keys and tensors of a GGUF file that this program does not know go along into
// another GGUF file byte for byte; those that describe the one file or its type do not.
func TestUnknownInGGUF(t *testing.T) {
	t.Parallel()
	src, f := open(t, "../fixtures/v1-dense/checkpoint"), gguf.Format()
	p, err := Plan(src, Options{Options: plan.Options{Format: "gguf", NoVocab: true, DType: tensor.F32}})
	require.NoError(t, err)
	d := format.Description{NoVocab: true, Config: src.Config, Name: "x", Type: "F32", Was: make([]tensor.DType, len(p.Tensors))}
	for i := range p.Tensors {
		d.Tensors = append(d.Tensors, p.Tensors[i].Info())
	}
	described, err := f.Dialect.Describe(d)
	require.NoError(t, err)
	pair := func(key string, kind byte, value string) string {
		return string(binary.LittleEndian.AppendUint64(nil, uint64(len(key)))) + key + string([]byte{kind, 0, 0, 0}) + value
	}
	array := "\x06\x00\x00\x00" + "\x02\x00\x00\x00\x00\x00\x00\x00" + "\x00\x00\x80\x7f\x01\x00\xc0\x7f" // f32: infinity, a NaN
	unknown := pair("vendor.array", 9, array) + pair("vendor.text", 8, "\x02\x00\x00\x00\x00\x00\x00\x00\xff\n")
	keys := append(described.Keys, pair("general.alignment", 4, "\x20\x00\x00\x00")+unknown...)
	binary.LittleEndian.PutUint64(keys, binary.LittleEndian.Uint64(keys)+3)
	infos := append(d.Tensors, tensor.Info{Name: "vendor.table", DType: tensor.I32, Shape: []int{4}})
	l, err := f.Layout(infos, format.Head{Keys: keys})
	require.NoError(t, err)
	data := append(l.Header(), make([]byte, l.Size()-int64(len(l.Header())))...)
	copy(data[l.Offsets[len(infos)-1]:], "vendor's numbers")
	dir := t.TempDir()
	fixture.Write(t, dir, "source.gguf", string(data))

	dst := filepath.Join(dir, "out.gguf")
	r, err := Run(t.Context(), dst, open(t, filepath.Join(dir, "source.gguf")), Options{Options: plan.Options{Mixture: "q8_0"}, Settings: inMemory()})
	require.NoError(t, err)
	require.Contains(t, r.Notes, "1 tensor, the first is vendor.table, are not in the table of deepseek: they are copied")
	require.Contains(t, r.Notes, "the keys are the source's, but for general.file_type")
	written := fixture.Read(t, dir, "out.gguf")
	require.Contains(t, written, unknown)
	require.NotContains(t, written, "general.alignment")
	out := open(t, dst)
	x, err := out.Tensor("vendor.table")
	require.NoError(t, err)
	require.Equal(t, "vendor's numbers", string(x.Data))
	require.Equal(t, src.Config.HiddenSize, out.Config.HiddenSize)
}

// TestLegacyGGUF: a file with kv_b in one piece, as llama.cpp wrote them, becomes one with its pieces
// and their keys: the tensors of the checkpoint. Blocks are decoded on the way, or refused.
func TestLegacyGGUF(t *testing.T) {
	t.Parallel()
	for _, blocks := range []bool{false, true} {
		legacy := legacyFile(t, "../fixtures/v2-lite/checkpoint", blocks)
		dst := filepath.Join(t.TempDir(), "out.gguf")
		o := Options{plan.Options{DType: tensor.F32}, inMemory()}
		r, err := Run(t.Context(), dst, open(t, legacy), o)
		require.NoError(t, err)
		require.Contains(t, r.Notes[0], "the keys are the source's, but for deepseek2.attention.head_count_kv, deepseek2.attention.key_length")
		require.Contains(t, fixture.Read(t, filepath.Dir(dst), "out.gguf"), "blk.0.attn_k_b.weight")
		f32 := plan.Options{DType: tensor.F32}
		fixture.RequireSameTensors(t, open(t, converted(t, legacy, f32)), open(t, converted(t, dst, f32)))
		o.Options = plan.Options{}
		_, err = Run(t.Context(), filepath.Join(t.TempDir(), "x.gguf"), open(t, legacy), o)
		require.Equal(t, blocks, err != nil && strings.Contains(err.Error(), "are quantised already (Q8_0)"), "%v", err)
	}
}

// legacyFile writes the checkpoint at src as a GGUF file with other weights: kv_b is in one piece, in
// F32 or in blocks.
func legacyFile(t *testing.T, src string, blocks bool) string {
	hf, f := open(t, src), gguf.Format()
	p, err := Plan(hf, Options{Options: plan.Options{Format: "gguf", NoVocab: true, DType: tensor.F32}})
	require.NoError(t, err)
	c := hf.Config
	d := format.Description{NoVocab: true, Config: c, Name: "x", Type: "F32"}
	for i := range p.Tensors {
		info := p.Tensors[i].Info()
		if layer, is := strings.CutSuffix(info.Name, ".attn_k_b.weight"); is {
			info = tensor.Info{Name: layer + ".attn_kv_b.weight", DType: tensor.F32,
				Shape: []int{c.Attention.NumAttentionHeads * (c.Attention.QKNopeHeadDim + c.Attention.VHeadDim),
					c.Attention.KVLoraRank}}
			if blocks {
				info.DType = tensor.Q8_0
			}
		}
		if !strings.HasSuffix(info.Name, ".attn_v_b.weight") {
			d.Tensors = append(d.Tensors, info)
		}
	}
	d.Was = make([]tensor.DType, len(d.Tensors))
	described, err := f.Dialect.Describe(d)
	require.NoError(t, err)
	keys := string(described.Keys)
	for key, n := range map[string]int{"key_length": c.QKHeadDim(), "value_length": c.Attention.VHeadDim,
		"head_count_kv": c.Attention.NumAttentionHeads, "key_length_mla": -1, "value_length_mla": -1} {
		key = "deepseek2.attention." + key + "\x04\x00\x00\x00"
		before, after, found := strings.Cut(keys, key)
		require.True(t, found, key)
		if keys = before + key + string(binary.LittleEndian.AppendUint32(nil, uint32(n))) + after[4:]; n < 0 {
			keys = before[:len(before)-8] + after[4:] // with the key's length
		}
	}
	head := []byte(keys)
	binary.LittleEndian.PutUint64(head, binary.LittleEndian.Uint64(head)-2)
	l, err := f.Layout(d.Tensors, format.Head{Keys: head})
	require.NoError(t, err)
	data := append(l.Header(), make([]byte, l.Size()-int64(len(l.Header())))...)
	for i, info := range d.Tensors {
		for at := l.Offsets[i]; at < l.Offsets[i]+info.Bytes(); at += 2 { // small F16 numbers; F32 numbers of two of them
			binary.LittleEndian.PutUint16(data[at:], 0x3000+uint16(at%509))
		}
	}
	dir := t.TempDir()
	fixture.Write(t, dir, "legacy.gguf", string(data))
	return filepath.Join(dir, "legacy.gguf")
}

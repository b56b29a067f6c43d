package plan

import (
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/safetensors"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
)

// quantised returns the tensors of DeepSeek-V3 as they are published: 2-D weights FP8 with
// scales, but for the embedding, the head, the gates and what is the prediction layer's own.
func quantised(c *config.Config) (infos []tensor.Info) {
	add := func(s table.Slot) {
		switch s.Module() {
		case table.Embedding, table.Head, table.Router, table.Norms, table.MTP:
			infos = append(infos, s.Info(tensor.BF16))
			return
		}
		infos = append(infos, s.Info(tensor.F8E4M3), tensor.Info{Name: s.Name + "_scale_inv", DType: tensor.F32,
			Shape: []int{(s.Shape[0] + 127) / 128, (s.Shape[1] + 127) / 128}})
	}
	for s := range table.FamilyOf(c).Slots(c) {
		add(s)
	}
	for s := range table.FamilyOf(c).MTPSlots(c) {
		add(s)
	}
	return infos
}

// deepseekV3 returns the config.json of DeepSeek-V3, without -every of its first 9 layers and the prediction layer.
// Beside so few tensors a plan takes further bytes, whatever its tensors.
func deepseekV3(t *testing.T) (document string, further int64) {
	document = fixture.Read(t, fixture.Path(t, "states/deepseek-v3"), checkpoint.ConfigName)
	if configtest.Every(t) {
		return document, 0
	}
	return strings.Replace(document, `"num_hidden_layers": 61`, `"num_hidden_layers": 9`, 1), 150_000
}

// heap returns the bytes that are in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestMemory_every: plans of DeepSeek-V3's 91,991 tensors and the headers of their source take
// what Memory says, or up to a quarter less; planning takes more, but not more than
// PlanningMemory says. Without -every the source has fewer layers, and is copied.
func TestMemory_every(t *testing.T) {
	dir := t.TempDir()
	document, further := deepseekV3(t)
	c := configtest.Parse(t, document)
	document = strings.Replace(document, "{", `{"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},`, 1)
	fixture.Write(t, dir, checkpoint.ConfigName, document)
	fixture.Sparse(t, dir, safetensors.Format(), quantised(c), 4_300_000_000)
	before := heap()
	src := open(t, dir)
	require.LessOrEqual(t, heap()-before, src.Memory()+further)
	for name, o := range map[string]Options{
		"copy": {}, "dequantise": {DType: tensor.BF16}, "fuse": {Experts: FusedExperts, AllowFP8Fused: true}, "part": {Include: []string{"*norm*"}}, "gguf": {Format: "gguf", NoVocab: true},
	} {
		if !configtest.Every(t) && name != "copy" {
			continue
		}
		p, err := Conversion(src, o)
		require.NoError(t, err, name)
		if name == "copy" && configtest.Every(t) {
			require.Len(t, p.Tensors, 91_991)
		}
		took := heap() - before
		t.Logf("%s: %d bytes of %d, planning %d", name, took, p.Memory(), PlanningMemory(src, Options{}))
		require.LessOrEqual(t, took, p.Memory()+further, name)
		require.Greater(t, took, p.Memory()*3/4, name)
		require.Less(t, p.Memory(), PlanningMemory(src, Options{}), name)
		runtime.KeepAlive(p)
	}
	runtime.KeepAlive(src)
}

// TestMemoryOfFP8_every: the same for plans that give each weight scales.
func TestMemoryOfFP8_every(t *testing.T) {
	dir := t.TempDir()
	document, further := deepseekV3(t)
	fixture.Write(t, dir, checkpoint.ConfigName, document)
	c := configtest.Parse(t, document)
	infos := slices.DeleteFunc(quantised(c), func(i tensor.Info) bool { return strings.HasSuffix(i.Name, "_scale_inv") })
	for i := range infos {
		infos[i].DType = tensor.BF16
	}
	fixture.Sparse(t, dir, safetensors.Format(), infos, 4_300_000_000)
	before := heap()
	src := open(t, dir)
	o := Options{DType: tensor.F8E4M3}
	p, err := Conversion(src, o)
	require.NoError(t, err)
	if configtest.Every(t) {
		require.Len(t, p.Tensors, 91_991)
	}
	took := heap() - before
	t.Logf("%d bytes of %d, planning %d", took, p.Memory(), PlanningMemory(src, o))
	require.LessOrEqual(t, took, p.Memory()+further)
	require.Greater(t, took, p.Memory()*3/4)
	require.Less(t, p.Memory(), PlanningMemory(src, o))
	runtime.KeepAlive(p)
	runtime.KeepAlive(src)
}

// TestMemoryOfNames: the names that planning makes of a decoder's are counted with it.
func TestMemoryOfNames(t *testing.T) {
	c := configtest.Fixture(t, "states/deepseek-v3")
	planning := func(prefix string) int64 {
		dir := t.TempDir()
		fixture.Write(t, dir, checkpoint.ConfigName, fixture.Read(t, fixture.Path(t, "states/deepseek-v3"), checkpoint.ConfigName))
		infos := quantised(c)[:1000]
		for i := range infos {
			infos[i].Name = prefix + strings.TrimPrefix(infos[i].Name, "model.")
		}
		fixture.Sparse(t, dir, safetensors.Format(), infos, 4_300_000_000)
		return PlanningMemory(open(t, dir), Options{})
	}
	require.Greater(t, planning("")-planning("model."), 1000*int64(len("layers.0.")))
}

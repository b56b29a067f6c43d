package convert

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/operation"
	"dsmoe/convert/plan"
	"dsmoe/convert/safetensors"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text/problem"
)

// hostileConfigs are the quantization_config of fixtures/forms/scales-*.safetensors.
var hostileConfigs = map[string]string{
	"fp8":            `{"quant_method": "fp8", "weight_block_size": [8, 16]}`,
	"nvfp4":          `{"quant_method": "modelopt", "quant_algo": "NVFP4"}`,
	"pack-quantized": compressed(4, "pack-quantized", "int", "group", 32),
	"zeros": strings.Replace(compressed(4, "pack-quantized", "int", "group", 32), `"num_bits"`,
		`"symmetric": false, "num_bits"`, 1),
	"nvfp4-pack-quantized": compressed(4, "nvfp4-pack-quantized", "float", "tensor_group", 16),
	"channel":              compressed(4, "pack-quantized", "int", "channel", 0),
	"mxfp4-pack-quantized": compressed(4, "mxfp4-pack-quantized", "float", "group", 32),
	"awq":                  `{"quant_method": "awq", "bits": 4, "group_size": 16}`,
	"gptq":                 `{"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": false}`,
	"gptq-v2":              `{"quant_method": "gptq", "bits": 4, "group_size": 16, "checkpoint_format": "gptq_v2"}`,
	"gptq-row":             `{"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": true}`,
	"float":                compressed(8, "float-quantized", "float", "tensor", 0),
	"int8":                 compressed(8, "int-quantized", "int", "channel", 0),
	"mxfp8":                compressed(8, "mxfp8-quantized", "float", "group", 32),
	"mxfp6":                compressed(6, "mxfp6-pack-quantized", "float", "group", 32),
	"packed-2":             compressed(2, "pack-quantized", "int", "group", 32), "packed-3": compressed(3, "pack-quantized", "int", "group", 32),
	"packed-5": compressed(5, "pack-quantized", "int", "group", 32), "packed-6": compressed(6, "pack-quantized", "int", "group", 32),
	"packed-7": compressed(7, "pack-quantized", "int", "group", 32), "packed-8": compressed(8, "pack-quantized", "int", "group", 32),
	"gptq-desc-act": `{"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": true}`,
}

// compressed returns a quantization_config of compressed-tensors.
func compressed(bits int, format, kind, strategy string, group int) string {
	return fmt.Sprintf(`{"quant_method": "compressed-tensors", "format": %q, "config_groups": {"group_0": {"weights":
		{"num_bits": %d, "type": %q, "strategy": %q, "group_size": %d}}}}`, format, bits, kind, strategy, group)
}

// TestNumbersAreTheLibraries: matrices with scales that no model should have stand for the numbers that the
// libraries make of them, bit for bit but for the bits of NaN and, where ModelOpt has no -0, the sign of 0; and Prove takes them, but no others.
func TestNumbersAreTheLibraries(t *testing.T) {
	unrounded := 0
	for method, config := range hostileConfigs {
		dir := t.TempDir()
		at := fixture.Path(t, "forms/bf16")
		text, err := os.ReadFile(filepath.Join(at, checkpoint.ConfigName))
		require.NoError(t, err)
		text = append([]byte(`{"quantization_config": `+config+","), text[1:]...)
		require.NoError(t, os.WriteFile(filepath.Join(dir, checkpoint.ConfigName), text, 0o666))
		data, err := os.ReadFile(filepath.Join(at, "..", "scales-"+method+".safetensors"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), data, 0o666))
		c := open(t, dir)
		set, found := weights.New(c.Config, c), 0
		for _, w := range set.All() {
			if strings.HasSuffix(w.Name, ".numbers") {
				require.True(t, set.Find(strings.TrimSuffix(w.Name, "numbers")+"weight").Scaled(), w.Name)
			}
			if w.Scaled() {
				found++
				unrounded += requireNumbers(t, c, w, set.Find(w.Name[:len(w.Name)-len(".weight")]+".numbers"))
			}
		}
		require.Positive(t, found, method)
	}
	require.Positive(t, unrounded, "numbers in F32 that a library rounds to BF16 or F16")
}

// requireNumbers compares the numbers of a weight with those of a library, in the library's dtype, which is that of the
// scales. It returns how many of ours are other ones in F32.
func requireNumbers(t *testing.T, c *checkpoint.Checkpoint, w, numbers *weights.Weight) (unrounded int) {
	require.NoError(t, w.CheckScales(), w.Name)
	view, err := numbers.View(c)
	require.NoError(t, err)
	want, err := view.Float32s(nil)
	require.NoError(t, err)
	codes, err := w.View(c)
	require.NoError(t, err)
	d, err := operation.NewDequantise(w.DType, numbers.DType, w.Scaling())
	require.NoError(t, err)
	in := operation.Input{Data: codes.Data}
	for i, span := range d.Sides(0, int64(w.Len())) {
		side, err := w.Sides()[i].View(c)
		require.NoError(t, err)
		in.Sides = append(in.Sides, side.Data[span.Begin:span.End])
	}
	var lost tensor.Loss
	out := make([]byte, len(view.Data))
	require.NoError(t, d.Apply(out, in, &lost), w.Name)
	require.NoError(t, d.Prove(out, in), w.Name)
	got, err := tensor.Tensor{DType: numbers.DType, Shape: w.Shape, Data: out}.Float32s(nil)
	require.NoError(t, err)
	for i := range want {
		same := math.Float32bits(got[i]) == math.Float32bits(want[i]) || got[i] != got[i] && want[i] != want[i] ||
			got[i] == 0 && want[i] == 0 && w.Form() == tensor.FormOf("nvfp4")
		if !same {
			t.Fatalf("%s: element %d is %v, the library has %v", w.Name, i, got[i], want[i])
		}
	}
	stream, err := weights.NewStream(c, w).Part(0, w.Len())
	require.NoError(t, err)
	for i, v := range stream {
		if v == v && numbers.DType == tensor.F32 {
			require.Equal(t, math.Float32bits(want[i]), math.Float32bits(v), "%s: element %d", w.Name, i)
		} else if v == v && v != want[i] {
			unrounded++
		}
	}
	for i := range want {
		if size := int(numbers.DType.Bytes(1)); want[i] != 0 && want[i]-want[i] == 0 {
			out[i*size+size-1] ^= 0x80 // the sign
			require.Error(t, d.Prove(out, in), w.Name)
			break
		}
	}
	return unrounded
}

// TestTransposedMatrixFitsMemory: a matrix that a worker has to hold whole, and does not fit in the memory, is
// refused with the size that is enough.
func TestTransposedMatrixFitsMemory(t *testing.T) {
	dir := t.TempDir()
	c, _, err := checkpoint.ReadConfig(filepath.Join(fixture.Path(t, "forms/awq"), checkpoint.ConfigName))
	require.NoError(t, err)
	c, err = c.Override(map[string]jsontext.Value{"intermediate_size": jsontext.Value("2097152")})
	require.NoError(t, err)
	var infos []tensor.Info
	for _, info := range table.FamilyOf(c).Implied(c) {
		infos = append(infos, info)
	}
	fixture.Sparse(t, dir, safetensors.Format(), infos, 1<<40)
	fixture.Write(t, dir, checkpoint.ConfigName, string(c.JSON()))
	src := open(t, dir)
	for _, o := range []plan.Options{{DType: tensor.BF16}, {Format: "gguf", NoVocab: true}} {
		p, err := Plan(src, Options{o, Settings{}})
		require.NoError(t, err)
		err = Settings{Memory: 64 << 20}.CheckPlan("out", p)
		require.ErrorContains(t, err, "a matrix that is stored transposed or that an adapter changes does not fit in 64.00 MiB of memory")
		var e *problem.Error
		require.ErrorAs(t, err, &e)
		var enough int64
		_, err = fmt.Sscanf(e.Problems[0].Hint, "--max-memory %dMiB is enough", &enough)
		require.NoError(t, err)
		require.NoError(t, Settings{Memory: enough << 20}.CheckPlan("out", p))
		require.Error(t, Settings{Memory: (enough - 2) << 20}.CheckPlan("out", p))
	}
	p, err := Plan(src, Options{})
	require.NoError(t, err)
	require.NoError(t, Settings{Memory: 64 << 20}.CheckPlan("out", p))
}

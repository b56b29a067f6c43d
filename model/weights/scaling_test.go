package weights

import (
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/model/tensor"
	"dsmoe/model/tensor/tensortest"
)

// TestSides: a packed weight has the form's name, dtype and shape, its sides in order, and is given back as
// stored; what its form does not have, or lacks, is refused.
func TestSides(t *testing.T) {
	of := func(d tensor.DType, shape ...int) tensor.Tensor {
		n, err := tensor.Size(d, shape)
		require.NoError(t, err)
		return tensor.Tensor{DType: d, Shape: shape, Data: make([]byte, n)}
	}
	whole := func() memory {
		return memory{"w.weight_packed": of(tensor.I32, 9, 8), "w.weight_scale": of(tensor.BF16, 9, 2),
			"w.weight_zero_point": of(tensor.I32, 2, 2), "w.weight_shape": of(tensor.I64, 2)}
	}
	for cause, change := range map[string]func(m memory){
		"":                               func(memory) {},
		"w.weight_zero_point is missing": func(m memory) { delete(m, "w.weight_zero_point") },
		"w.weight_zero_point has dtype I32 and shape [1 2]: I32 [2 2] is expected": func(m memory) {
			m["w.weight_zero_point"] = of(tensor.I32, 1, 2)
		},
		"w.weight_g_idx: columns in an order of their own (activation order) are not read": func(m memory) {
			m["w.weight_g_idx"] = of(tensor.I32, 64)
		},
		"w.weight_scale and w.weight_scale_inv are both there: which of them are the weight's scales is not known": func(m memory) {
			m["w.weight_scale_inv"] = of(tensor.F32, 1, 1)
		},
		"its scales have shape [9 4]: blocks of [1 32] give [9 2]": func(m memory) {
			m["w.weight_scale"] = of(tensor.BF16, 9, 4)
		},
		"w.weight_shape has dtype I16 and shape [2]: I64 [2] is expected": func(m memory) {
			m["w.weight_shape"] = of(tensor.I16, 2)
		},
		"w.weight_shape has dtype I32 and shape [3]: I32 [2] is expected": func(m memory) {
			m["w.weight_shape"] = of(tensor.I32, 3)
		},
		"its scales have dtype F8_E4M3": func(m memory) { m["w.weight_scale"] = of(tensor.F8E4M3, 9, 2) },
	} {
		m := whole()
		change(m)
		c := &config.Config{
			ModelType: "deepseek_v3", Quantization: config.Quantization{Method: "pack-quantized, asymmetric", Block: [2]int{1,
				32}},
		}
		w := New(c, m).Find("w.weight")
		require.NotNil(t, w)
		if cause != "" {
			require.ErrorContains(t, w.CheckScales(), cause)
			continue
		}
		require.NoError(t, w.CheckScales())
		require.Equal(t, tensor.Info{Name: "w.weight", DType: tensor.INT4, Shape: []int{9, 64}}, w.Info)
		require.Equal(t, tensor.Info{Name: "w.weight_packed", DType: tensor.I32, Shape: []int{9, 8}}, w.AsStored().Info)
		names := []string{}
		for _, side := range w.Sides() {
			require.True(t, side.IsScales())
			names = append(names, side.Name)
		}
		require.Equal(t, []string{"w.weight_scale", "w.weight_zero_point", "w.weight_shape"}, names)
	}
}

// TestWrongShapes: all weights whose weight_shape, of I64 or I32, is not that of their codes are listed, and none of them is read.
func TestWrongShapes(t *testing.T) {
	shape := func(d tensor.DType, rows, cols int64) tensor.Tensor {
		data := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(rows)), uint64(cols))
		if d == tensor.I32 {
			data = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, uint32(rows)), uint32(cols))
		}
		return tensor.Tensor{DType: d, Shape: []int{2}, Data: data}
	}
	m := memory{}
	for name, s := range map[string]tensor.Tensor{"right": shape(tensor.I64, 9, 64), "right32": shape(tensor.I32, 9, 64),
		"one": shape(tensor.I64, 1, 1), "negative": shape(tensor.I64, -5, 7), "swapped": shape(tensor.I32, 64, 9)} {
		m[name+".weight_packed"] = tensor.Tensor{DType: tensor.I32, Shape: []int{9, 8}, Data: make([]byte, 9*32)}
		m[name+".weight_scale"] = tensor.Tensor{DType: tensor.BF16, Shape: []int{9, 2}, Data: make([]byte, 36)}
		m[name+".weight_shape"] = s
	}
	c := &config.Config{
		ModelType: "deepseek_v3", Quantization: config.Quantization{Method: "pack-quantized", Block: [2]int{1, 32}},
	}
	set, causes := New(c, m), map[string]string{}
	for _, w := range set.WrongShapes(Mapped(m)) {
		causes[w.Got.Name] = w.Cause
	}
	const cause = ", which libraries unpack by, but the packed codes have shape [9 64]"
	require.Equal(t, map[string]string{"one.weight": "weight_shape is [1 1]" + cause,
		"negative.weight": "weight_shape is [-5 7]" + cause, "swapped.weight": "weight_shape is [64 9]" + cause}, causes)
	for _, name := range []string{"right", "right32", "one", "negative", "swapped"} {
		w := set.Find(name + ".weight")
		_, err := w.Grid(0, 8, func(side *Weight, begin, end int64) ([]byte, error) { return m[side.Stored].Data[begin:end], nil })
		require.Equal(t, causes[name+".weight"] != "", err != nil, name)
	}
	require.Empty(t, set.WrongShapes(func(*Weight) ([]byte, error) { return nil, nil }))
}

// TestHostileForms_every: whatever tensors lie beside each other, with whatever config, the set is made and checked, and what
// CheckScales takes can be read, all of it.
func TestHostileForms_every(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	ends := []string{"weight", "weight_packed", "qweight", "weight_scale_inv", "weight_scale", "scale", "weight_scale_2",
		"weight_global_scale", "weight_zero_point", "weight_g_idx", "weight_shape", "input_scale", "scales", "qzeros", "g_idx", "k_scale"}
	dtypes := []tensor.DType{tensor.F8E4M3, tensor.I8, tensor.U8, tensor.I32, tensor.BF16, tensor.F32, tensor.F8E8M0, tensor.I64, tensor.Invalid}
	methods := []string{"", "fp8", "float-quantized", "nvfp4", "awq", "no such form"}
	for _, f := range tensor.Forms() {
		methods = append(methods, f.Method)
	}
	dims, read := []int{0, 1, 2, 8, 16, 64, 3}, 0
	likely := [][]int{{}, {64}, {64, 64}, {64, 1}, {64, 8}, {64, 16}, {64, 2}, {64, 4}, {64, 32}, {8, 64}, {2, 64}, {2}, {16, 4}}
	parsed, err := config.Parse(strings.NewReader(`{"model_type":"deepseek_v3","hidden_size":64,"num_hidden_layers":1,` +
		`"num_attention_heads":4,"num_key_value_heads":4,"v_head_dim":16}`))
	require.NoError(t, err)
	tries := 4000
	if configtest.Every(t) {
		tries = 40000
	}
	for range tries {
		m := memory{}
		for _, end := range ends {
			if r.IntN(6) > 0 && end != "weight" {
				continue
			}
			x := tensor.Tensor{DType: dtypes[r.IntN(len(dtypes))]}
			for range min(r.IntN(5), 3) {
				x.Shape = append(x.Shape, dims[r.IntN(len(dims))])
			}
			if r.IntN(2) == 0 {
				x.Shape = likely[r.IntN(len(likely))]
			}
			if x.DType != tensor.Invalid {
				x.Data = make([]byte, tensor.Info{DType: x.DType, Shape: x.Shape}.Bytes())
			}
			m["model.layers.0.self_attn.o_proj."+end] = x
		}
		c := *parsed
		c.Quantization.Method, c.Quantization.Block = methods[r.IntN(len(methods))], [2]int{r.IntN(3) * 8, r.IntN(3) * 8}
		set := New(&c, m)
		_ = set.Check(&c)
		for _, w := range set.All() {
			if w.Scaled() && w.CheckScales() == nil && w.Sides() != nil && !w.Sides()[0].Unread() {
				values, err := NewStream(m, w).Part(0, w.Len())
				if err == nil && len(values) > 0 {
					read++
				}
			}
		}
	}
	require.Greater(t, read, tries/2000)
}

// TestUnequalSeconds: of gate and up with other second scales the gate is listed, with both numbers.
func TestUnequalSeconds(t *testing.T) {
	c, err := config.Parse(strings.NewReader(`{"model_type":"deepseek_v3"}`))
	require.NoError(t, err)
	c.Quantization.Method = "nvfp4"
	m := memory{}
	for expert, second := range map[string]float32{"0.gate": 0.5, "0.up": 0.25, "1.gate": 2, "1.up": 2, "2.gate": 3} {
		at := "model.layers.3.mlp.experts." + expert + "_proj.weight"
		m[at] = tensor.Tensor{DType: tensor.U8, Shape: []int{2, 8}, Data: make([]byte, 16)}
		m[at+"_scale"] = tensor.Tensor{DType: tensor.F8E4M3, Shape: []int{2, 1}, Data: make([]byte, 2)}
		m[at+"_scale_2"] = tensortest.New(t, tensor.F32, []int{}, []float32{second})
	}
	wrong := New(c, m).UnequalSeconds(Mapped(m))
	require.Len(t, wrong, 1)
	require.Equal(t, "model.layers.3.mlp.experts.0.gate_proj.weight", wrong[0].Got.Name)
	require.Equal(t, "weight_scale_2 is 0.5, but that of up_proj is 0.25: engines that run both as one matrix keep one of the two", wrong[0].Cause)
	require.Empty(t, New(c, m).UnequalSeconds(func(*Weight) ([]byte, error) { return nil, nil }))
}

package weights

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/tensor/tensortest"
)

// memory is a checkpoint in memory, its tensors in the order of their names.
type memory map[string]tensor.Tensor

func (m memory) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			if !yield(tensor.Info{Name: name, DType: m[name].DType, Shape: m[name].Shape}) {
				return
			}
		}
	}
}

func (m memory) Tensor(name string) (tensor.Tensor, error) {
	if t, ok := m[name]; ok {
		return t, nil
	}
	return tensor.Tensor{}, errors.New("no such tensor")
}

func (m memory) ReadAt(name string, dst []byte, offset int64) error {
	t, err := m.Tensor(name)
	copy(dst, t.Data[offset:])
	return err
}

// counting returns a tensor of bytes 0, 1, 2, ….
func counting(d tensor.DType, shape ...int) tensor.Tensor {
	t := tensor.Tensor{DType: d, Shape: shape}
	t.Data = make([]byte, d.Bytes(int64(t.Len())))
	for i := range t.Data {
		t.Data[i] = byte(i)
	}
	return t
}

// TestFusedExpertsAreTakenApart: gate's rows, then up's, expert by expert; scales alike.
func TestFusedExpertsAreTakenApart(t *testing.T) {
	const group = "model.layers.0.mlp.experts"
	src := memory{group + ".gate_up_proj": counting(tensor.U8, 3, 4, 5), group + ".down_proj": counting(tensor.U8, 3, 5, 2)}
	set := New(&config.Config{ModelType: "deepseek_v3", MoE: config.MoE{NRoutedExperts: 3}}, src)
	require.Empty(t, set.Misfits)
	require.Len(t, set.All(), 9)
	for e := range 3 {
		for i, part := range []string{"gate_proj", "up_proj"} {
			w := set.Find(fmt.Sprintf("%s.%d.%s.weight", group, e, part))
			require.Equal(t, []int{2, 5}, w.Shape)
			require.True(t, w.Shared)
			view, err := w.View(src)
			require.NoError(t, err)
			require.Equal(t, src[group+".gate_up_proj"].Data[(2*e+i)*10:][:10], view.Data)
			read := make([]byte, 3)
			require.NoError(t, w.ReadAt(src, read, 4))
			require.Equal(t, view.Data[4:7], read)
		}
	}
	down, err := set.Find(group + ".2.down_proj.weight").View(src)
	require.NoError(t, err)
	require.Equal(t, src[group+".down_proj"].Data[20:], down.Data)
	require.Nil(t, set.Find(group+".gate_up_proj"))
}

// TestMisfits: what looks fused and is not, and what is there twice.
func TestMisfits(t *testing.T) {
	const group = "model.layers.0.mlp.experts"
	for name, c := range map[string]struct {
		src  memory
		want string
	}{
		"rank":    {memory{group + ".down_proj": counting(tensor.U8, 3, 5)}, "shape [3 5] is not that of fused experts"},
		"odd":     {memory{group + ".gate_up_proj": counting(tensor.U8, 2, 3, 1)}, "shape [2 3 1] is not that of fused experts"},
		"experts": {memory{group + ".down_proj": counting(tensor.U8, 3, 5, 2)}, "3 experts, config says 2"},
		"twice": {memory{group + ".down_proj": counting(tensor.U8, 2, 5, 2), group + ".1.down_proj.weight": counting(tensor.U8, 5, 2)},
			"is there twice: in " + group + ".1.down_proj.weight and in " + group + ".down_proj"},
	} {
		set := New(&config.Config{ModelType: "deepseek_v3", MoE: config.MoE{NRoutedExperts: 2}}, c.src)
		require.Len(t, set.Misfits, 1, name)
		require.Contains(t, set.Misfits[0].Cause, c.want)
	}
}

// TestInMisfit: the weights of a fused tensor that cannot be taken apart are not missing;
// others are. Names are the table's, also those of a decoder alone.
func TestInMisfit(t *testing.T) {
	set := New(&config.Config{ModelType: "deepseek_v3", MoE: config.MoE{NRoutedExperts: 2}},
		memory{"layers.0.mlp.experts.down_proj": counting(tensor.U8, 3, 5, 2)})
	require.Equal(t, "model.layers.0.mlp.experts.down_proj", set.Misfits[0].Name)
	for name, want := range map[string]bool{
		"model.layers.0.mlp.experts.1.down_proj.weight":           true,
		"model.layers.0.mlp.experts.9.down_proj.weight":           true,
		"model.layers.0.mlp.experts.1.down_proj.weight_scale_inv": false,
		"model.layers.0.mlp.experts.1.up_proj.weight":             false,
		"model.layers.1.mlp.experts.1.down_proj.weight":           false,
		"model.layers.0.mlp.experts.down_proj":                    false,
		"model.norm.weight":                                       false,
	} {
		require.Equal(t, want, set.InMisfit(name), name)
	}
}

// TestDecoderNames: "model." is put before the names of a decoder saved alone, and before
// no others.
func TestDecoderNames(t *testing.T) {
	one := counting(tensor.U8, 1)
	for name, c := range map[string]struct {
		src  memory
		want []string
	}{
		"decoder": {memory{"layers.0.x": one, "norm.weight": one, "lm_head.weight": one}, []string{"model.layers.0.x", "lm_head.weight", "model.norm.weight"}},
		"model":   {memory{"model.layers.0.x": one, "other": one}, []string{"model.layers.0.x", "other"}},
		"neither": {memory{"a": one, "b": one}, []string{"a", "b"}},
	} {
		var got []string
		for _, w := range New(&config.Config{ModelType: "deepseek_v3"}, c.src).All() {
			got = append(got, w.Name)
			require.Contains(t, c.src, w.Stored)
		}
		require.Equal(t, c.want, got, name)
	}
}

// TestImplied: of stored names those that the config implies, scales, fused experts and a stored head among them.
func TestImplied(t *testing.T) {
	c := configtest.Fixture(t, "v3-mtp/checkpoint")
	c.TieWordEmbeddings = true
	for name, want := range map[string]bool{
		"model.norm.weight": true, "lm_head.weight": true, "layers.0.input_layernorm.weight": true,
		"model.layers.1.mlp.experts.0.up_proj.weight_scale_inv": true, "model.layers.1.mlp.experts.gate_up_proj": true,
		"model.layers.2.enorm.weight": true, "model.layers.2.mlp.experts.down_proj": true,

		"norm.wait": false, "lang.model.norm.weight": false, "model.layers.0.self_attn.rotary_emb.inv_freq": false,
		"model.layers.3.input_layernorm.weight": false, "model.layers.3.mlp.experts.gate_up_proj": false,
		"model.layers.0.mlp.gate.weight": false, "model.layers.0.mlp.experts.down_proj": false,
		"model.layers.1.mlp.experts.16.up_proj.weight": false,
	} {
		require.Equal(t, want, Implied(c, name), name)
	}
}

// fp8 is a matrix of FP8 in blocks of 2 × 2, ragged, and its scales.
func fp8(t *testing.T, scales tensor.DType) memory {
	return memory{
		"w":           {DType: tensor.F8E4M3, Shape: []int{3, 3}, Data: []byte{0x38, 0x40, 0x44, 0xb8, 0x01, 0x7e, 0, 0x39, 0x3a}},
		"w_scale_inv": tensortest.New(t, scales, []int{2, 2}, []float32{1, 3, 0.5, 8}),
	}
}

// TestBlocksOfRows: in a family with tables, a matrix with a row of scales for each row has blocks of one row; in
// others, and where there are fewer scales, the blocks are those of the config.
func TestBlocksOfRows(t *testing.T) {
	for _, c := range []struct {
		family string
		scales int // rows
		want   [2]int
	}{{"deepseek_v41", 4, [2]int{1, 2}}, {"deepseek_v41", 2, [2]int{2, 2}}, {"deepseek_v3", 4, [2]int{2, 2}},
		{"deepseek_v3", 2, [2]int{2, 2}}} {
		src := memory{"w": counting(tensor.F8E4M3, 4, 4), "w_scale_inv": counting(tensor.F32, c.scales, 2)}
		fp8 := config.Quantization{Method: "fp8", Block: [2]int{2, 2}}
		w := New(&config.Config{ModelType: c.family, Quantization: fp8}, src).Find("w")
		require.Equal(t, c.want, w.Block, c)
		require.Equal(t, c.scales == 4/c.want[0], w.CheckScales() == nil, c)
	}
}

// TestStream: numbers come in parts of any size, FP8 times its scales whatever their
// dtype.
func TestStream(t *testing.T) {
	for _, d := range []tensor.DType{tensor.F32, tensor.F16, tensor.BF16} {
		src := fp8(t, d)
		w := New(&config.Config{ModelType: "deepseek_v3", Quantization: config.Quantization{Method: "fp8", Block: [2]int{2, 2}}}, src).Find("w")
		require.Equal(t, tensor.F32, w.NumberType())
		require.NoError(t, w.CheckScales())
		scales := []float32{1, 1, 3, 1, 1, 3, 0.5, 0.5, 8}
		for n := 1; n <= 9; n++ {
			s := NewStream(src, w)
			for at := 0; at < 9; at += n {
				part := min(n, 9-at)
				require.NoError(t, s.Load(int64(at), part))
				require.Equal(t, src["w"].Data[at:at+part], s.Raw)
				values, err := s.Values()
				require.NoError(t, err)
				for i, v := range values {
					require.Equal(t, tensor.E4M3(s.Raw[i])*scales[at+i], v)
				}
				require.Len(t, values, part)
			}
		}
	}
	plain := memory{"x": tensortest.Vector(t, tensor.BF16, 1, -2, 3)}
	s := NewStream(plain, New(&config.Config{ModelType: "deepseek_v3"}, plain).Find("x"))
	require.NoError(t, s.Load(1, 2))
	values, err := s.Values()
	require.NoError(t, err)
	require.Equal(t, []float32{-2, 3}, values)
	require.True(t, bytes.Equal(plain["x"].Data[2:], s.Raw))
}

// reads counts reads of scales.
type reads struct {
	memory
	scales int
}

func (r *reads) ReadAt(name string, dst []byte, offset int64) error {
	if name == "w_scale_inv" {
		r.scales++
	}
	return r.memory.ReadAt(name, dst, offset)
}

// TestStreamOfGrids: a small grid is read once, of a large one the rows of each part; a stream that was released reads the
// next weight's.
func TestStreamOfGrids(t *testing.T) {
	r := NewReading(t.Context(), 1, nil)
	for rows, want := range map[int]int{200: 1, 300: 7} {
		scales := make([]float32, rows/2*75)
		for i := range scales {
			scales[i] = float32(i + rows)
		}
		src := &reads{memory: memory{"w": counting(tensor.F8E4M3, rows, 149),
			"w_scale_inv": tensortest.New(t, tensor.F32, []int{rows / 2, 75}, scales)}}
		for i := range src.memory["w"].Data {
			src.memory["w"].Data[i] = byte(i % 100)
		}
		w := New(&config.Config{ModelType: "deepseek_v3", Quantization: config.Quantization{Method: "fp8", Block: [2]int{2, 2}}}, src).Find("w")
		require.NoError(t, w.CheckScales())
		s := r.Stream(src, w)
		size := (w.Len() + 6) / 7
		for at := 0; at < w.Len(); at += size {
			values, err := s.Part(int64(at), min(size, w.Len()-at))
			require.NoError(t, err)
			for i, v := range values {
				row, col := (at+i)/149, (at+i)%149
				require.Equal(t, tensor.E4M3(s.Raw[i])*scales[row/2*75+col/2], v, at+i)
			}
		}
		require.Equal(t, want, src.scales)
		r.Release(s)
	}
}

// TestCheckScales: what keeps FP8 from being read as numbers.
func TestCheckScales(t *testing.T) {
	for want, change := range map[string]func(m memory){
		"its scales, w_scale_inv, are missing":                        func(m memory) { delete(m, "w_scale_inv") },
		"shape [9]: only a matrix can have a scale":                   func(m memory) { m["w"] = counting(tensor.F8E4M3, 9) },
		"scales have shape [1 4]: blocks of [2 2] give [2 2]":         func(m memory) { m["w_scale_inv"] = counting(tensor.F32, 1, 4) },
		"scales have dtype U8: F32, F16, BF16 or F8_E8M0 is expected": func(m memory) { m["w_scale_inv"] = counting(tensor.U8, 2, 2) },
	} {
		src := fp8(t, tensor.F32)
		change(src)
		w := New(&config.Config{ModelType: "deepseek_v3", Quantization: config.Quantization{Method: "fp8", Block: [2]int{2, 2}}}, src).Find("w")
		require.ErrorContains(t, w.CheckScales(), want)
	}
	src := fp8(t, tensor.F32)
	require.NoError(t, New(&config.Config{ModelType: "deepseek_v3", Quantization: config.Quantization{Method: "fp8", Block: [2]int{2, 2}}}, src).Find("w_scale_inv").CheckScales(), "no FP8")
	require.Equal(t, [2]int{2, 2}, New(&config.Config{ModelType: "deepseek_v3"}, src).Find("w").Block, "as the scales divide the matrix, if the config does not say")
}

// failing is a source whose reads of one tensor fail.
type failing struct {
	memory
	name string
}

// ReadAt fails for the one tensor.
func (f failing) ReadAt(name string, dst []byte, offset int64) error {
	if name == f.name {
		return errors.New("disk on fire")
	}
	return f.memory.ReadAt(name, dst, offset)
}

// TestStreamErrors: what cannot be read, or has no numbers, is the error of its step, and
// one about scales names them.
func TestStreamErrors(t *testing.T) {
	c := &config.Config{ModelType: "deepseek_v3", Quantization: config.Quantization{Method: "fp8", Block: [2]int{2, 2}}}
	src := fp8(t, tensor.F32)
	s := NewStream(failing{src, "w"}, New(c, src).Find("w"))
	require.ErrorContains(t, s.Load(0, 3), "disk on fire")
	s = NewStream(failing{src, "w_scale_inv"}, New(c, src).Find("w"))
	require.NoError(t, s.Load(0, 3))
	_, err := s.Values()
	require.EqualError(t, err, "w_scale_inv: disk on fire")

	src["w_scale_inv"] = counting(tensor.F32, 1, 4)
	s = NewStream(src, New(c, src).Find("w"))
	require.NoError(t, s.Load(0, 3))
	_, err = s.Values()
	require.ErrorContains(t, err, "blocks of [2 2] give [2 2]")

	whole := memory{"x": counting(tensor.I32, 2)}
	s = NewStream(whole, New(c, whole).Find("x"))
	require.NoError(t, s.Load(0, 2))
	_, err = s.Values()
	require.ErrorContains(t, err, "dtype I32 does not decode")

	w := New(c, whole).Find("x")
	_, err = w.View(memory{})
	require.ErrorContains(t, err, "no such tensor")
}

// TestBlockStream: parts of a weight of a block type that begin and end within blocks, of a
// tensor of its own and of one among fused experts.
func TestBlockStream(t *testing.T) {
	const rows, cols = 3, 64
	r, blocks := uint32(1), make([]byte, tensor.Q8_0.Bytes(2*rows*cols))
	for i := range blocks {
		r = r*1664525 + 1013904223
		blocks[i] = byte(r >> 24)
		if i%34 == 1 {
			blocks[i] &= 0x3b // the scale is finite
		}
	}
	src := memory{
		"w":                                    {DType: tensor.Q8_0, Shape: []int{2 * rows, cols}, Data: blocks},
		"model.layers.0.mlp.experts.down_proj": {DType: tensor.Q8_0, Shape: []int{2, rows, cols}, Data: blocks},
	}
	want, err := src["w"].Float32s(nil)
	require.NoError(t, err)
	set := New(&config.Config{ModelType: "deepseek_v3", MoE: config.MoE{NRoutedExperts: 2}}, src)
	for name, from := range map[string]int{"w": 0, "model.layers.0.mlp.experts.1.down_proj.weight": rows * cols} {
		w := set.Find(name)
		require.Equal(t, tensor.F32, w.NumberType())
		s := NewStream(src, w)
		for _, c := range [][2]int{{0, 0}, {0, 1}, {0, 32}, {5, 3}, {31, 2}, {33, 64}, {64, 128}, {100, 92}} {
			require.NoError(t, s.Load(int64(c[0]), c[1]))
			got, err := s.Values()
			require.NoError(t, err)
			require.Equal(t, append([]float32{}, want[from+c[0]:from+c[0]+c[1]]...), append([]float32{}, got...), "%s %v", name, c)
		}
	}
}

// TestNoElements: a part without elements has no numbers, with scales or without.
func TestNoElements(t *testing.T) {
	src := fp8(t, tensor.F32)
	src["x"], src["y"], src["y_scale_inv"] = counting(tensor.BF16, 0, 3), counting(tensor.F8E4M3, 3, 0), counting(tensor.F32, 2, 0)
	for _, name := range []string{"w", "x", "y"} {
		s := NewStream(src, New(&config.Config{ModelType: "deepseek_v3", Quantization: config.Quantization{Method: "fp8", Block: [2]int{2, 2}}}, src).Find(name))
		require.NoError(t, s.Load(0, 0))
		values, err := s.Values()
		require.NoError(t, err)
		require.Empty(t, values)
		require.Empty(t, s.Raw)
	}
	view, err := New(&config.Config{ModelType: "deepseek_v3"}, src).Find("x").View(src)
	require.NoError(t, err)
	require.Empty(t, view.Data)
}

// TestFusedScales: the scales of fused FP8 experts are taken apart as their weights are,
// and each weight has its own.
func TestFusedScales(t *testing.T) {
	const group = "model.layers.0.mlp.experts"
	src := memory{
		group + ".gate_up_proj":           counting(tensor.F8E4M3, 2, 4, 2),
		group + ".gate_up_proj_scale_inv": tensortest.New(t, tensor.F32, []int{2, 2, 1}, []float32{1, 2, 4, 8}),
	}
	set := New(&config.Config{ModelType: "deepseek_v3", Quantization: config.Quantization{Method: "fp8", Block: [2]int{2,
		2}}, MoE: config.MoE{NRoutedExperts: 2}}, src)
	require.Empty(t, set.Misfits)
	for i, name := range []string{group + ".0.gate_proj.weight", group + ".0.up_proj.weight", group + ".1.gate_proj.weight", group + ".1.up_proj.weight"} {
		w := set.Find(name)
		require.NoError(t, w.CheckScales())
		require.True(t, w.Scales.IsScales())
		require.Equal(t, name+tensor.FP8.Parts[0], w.Scales.Name)
		require.Equal(t, int64(4*i), w.Offset())
		require.Equal(t, int64(4*i), w.Scales.Offset())
		s := NewStream(src, w)
		require.NoError(t, s.Load(1, 2))
		values, err := s.Values()
		require.NoError(t, err)
		scale := []float32{1, 2, 4, 8}[i]
		require.Equal(t, []float32{tensor.E4M3(byte(4*i+1)) * scale, tensor.E4M3(byte(4*i+2)) * scale}, values)
	}
}

// TestHeadStandsForEmbedding: of tied weights a file may hold the head alone, under its name; untied it is the head.
func TestHeadStandsForEmbedding(t *testing.T) {
	for _, tied := range []bool{true, false} {
		m := memory{"lm_head.weight": tensortest.New(t, tensor.F32, []int{1, 2}, []float32{1, 2})}
		s := New(&config.Config{ModelType: "deepseek_v3", TieWordEmbeddings: tied}, m)
		require.Equal(t, tied, s.Has("model.embed_tokens.weight"))
		require.Equal(t, !tied, s.Has("lm_head.weight"))
		require.Equal(t, tied, s.All()[0].Is(table.Embedding, table.EmbedTokens))
		values, err := NewStream(m, s.All()[0]).Part(0, 2)
		require.NoError(t, err)
		require.Equal(t, []float32{1, 2}, values)
		m["model.embed_tokens.weight"] = m["lm_head.weight"]
		require.True(t, New(s.config, m).Has("lm_head.weight"), "both are stored")
	}
}

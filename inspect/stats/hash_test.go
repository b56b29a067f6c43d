package stats

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"lukechampine.com/blake3"

	"dsmoe/config/configtest"
	"dsmoe/inspect"
	"dsmoe/inspect/inspecttest"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// hashOf hashes all of a checkpoint.
func hashOf(t *testing.T, w inspect.Weights) *HashReport {
	t.Helper()
	r, err := Hash(t.Context(), w, inspect.Selection{}, inspect.ByTensor)
	require.NoError(t, err)
	require.NotNil(t, r.Model)
	return r
}

// blake names bytes.
func blake(data string) string { return fmt.Sprintf("blake3:%x", blake3.Sum256([]byte(data))) }

// TestHashIsDefined: the hashes of tensors of every dtype, and of the model, are those of the
// bytes that HashReport defines, put together by hand.
func TestHashIsDefined(t *testing.T) {
	tensors := hostile()
	tensors["ids"] = tensor.Tensor{DType: tensor.I64, Shape: []int{1, 2}, Data: []byte("0123456789abcdef")}
	r := hashOf(t, weights128(inspecttest.Only(t, tensors)))
	var lines []string
	for _, x := range r.Tensors {
		var want string
		if x.Name == "ids" {
			want = blake("I64 1 2\n0123456789abcdef")
		} else {
			data := []byte("F32")
			for _, n := range tensors[x.Name].Shape {
				data = fmt.Append(data, " ", n)
			}
			data = append(data, '\n')
			for _, v := range valuesOf(t, tensors, x.Name) {
				if v != v {
					data = append(data, 0, 0, 0xc0, 0x7f)
				} else {
					data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
				}
			}
			want = blake(string(data))
		}
		assert.Equal(t, want, x.Hash, x.Name)
		lines = append(lines, x.Name+" "+x.Hash+"\n")
	}
	assert.Len(t, lines, len(tensors)-1, "scales have no hash")
	slices.Sort(lines)
	assert.Equal(t, blake(strings.Join(lines, "")), *r.Model)
	assert.Equal(t, blake("F32\n\x00\x00\x00\x40"), r.Tensors[slices.IndexFunc(r.Tensors,
		func(x hashedTensor) bool { return x.Name == "scalar" })].Hash)
}

// TestHashOfModules: a module is its tensors' names within it and their hashes; it has a hash
// if all of them are selected, and so has the model.
func TestHashOfModules(t *testing.T) {
	s := inspecttest.Fill(t, configtest.Fixture(t, "v1-base/checkpoint"))
	const expert, twin = "model.layers.2.mlp.experts.3", "model.layers.2.mlp.experts.9"
	for _, part := range []string{"gate_proj", "up_proj", "down_proj"} {
		s.Data[twin+"."+part+".weight"] = s.Data[expert+"."+part+".weight"]
	}
	whole := hashOf(t, s.Weights())
	find := func(r *HashReport, name string) string {
		for _, m := range r.Modules {
			if m.Name == name {
				return m.Hash
			}
		}
		for _, x := range r.Tensors {
			if x.Name == name {
				return x.Hash
			}
		}
		return ""
	}
	lines := ""
	for _, part := range []string{"down_proj", "gate_proj", "up_proj"} {
		lines += part + ".weight " + find(whole, expert+"."+part+".weight") + "\n"
	}
	assert.Equal(t, blake(lines), find(whole, expert))
	assert.Equal(t, find(whole, expert), find(whole, twin))
	assert.NotEqual(t, find(whole, expert), find(whole, "model.layers.2.mlp.experts.4"))
	assert.NotEmpty(t, find(whole, "model.layers"))
	assert.Empty(t, find(whole, "model.norm"), "a module of one tensor")

	part, err := Hash(t.Context(), s.Weights(), inspect.Selection{Layers: text.Spans{{2, 2}}}, inspect.ByModule)
	require.NoError(t, err)
	assert.Nil(t, part.Model)
	assert.Equal(t, find(whole, "model.layers.2"), find(part, "model.layers.2"))
	assert.Empty(t, find(part, "model.layers"))
	assert.NotContains(t, inspecttest.Printed(t, part), "(model)")
}

// TestHashIsOfValues: names without "model.", fused experts, and other dtypes of the same
// numbers have the same hash; another number, another sign of zero, another shape and another
// name have not.
func TestHashIsOfValues(t *testing.T) {
	base := func() *inspecttest.Stored { return inspecttest.Fill(t, configtest.Fixture(t, "v1-base/checkpoint")) }
	want := *hashOf(t, base().Weights()).Model
	each := func(s *inspecttest.Stored, f func(x *tensor.Info)) {
		for i := range s.Files {
			s.Files[i].Tensors = slices.Clone(s.Files[i].Tensors)
			for k := range s.Files[i].Tensors {
				f(&s.Files[i].Tensors[k])
			}
		}
	}
	for name, c := range map[string]struct {
		change func(s *inspecttest.Stored)
		same   bool
	}{
		"other files": {func(s *inspecttest.Stored) { s.Files[0], s.Files[1] = s.Files[1], s.Files[0] }, true},
		"no model.": {func(s *inspecttest.Stored) {
			each(s, func(x *tensor.Info) {
				short := strings.TrimPrefix(x.Name, "model.")
				s.Data[short] = s.Data[x.Name]
				x.Name = short
			})
		}, true},
		"as F32": {func(s *inspecttest.Stored) {
			each(s, func(x *tensor.Info) {
				wide := []byte{}
				for i := 0; i < len(s.Data[x.Name]); i += 2 {
					wide = append(wide, 0, 0, s.Data[x.Name][i], s.Data[x.Name][i+1])
				}
				x.DType, s.Data[x.Name] = tensor.F32, wide
			})
		}, true},
		"a number":       {func(s *inspecttest.Stored) { s.Data[normal][0] ^= 1 }, false},
		"a sign of zero": {func(s *inspecttest.Stored) { s.Put("model.norm.weight", 0, 0x8000) }, false},
		"a shape": {func(s *inspecttest.Stored) {
			each(s, func(x *tensor.Info) {
				if x.Name == normal {
					x.Shape = []int{32, 128}
				}
			})
		}, false},
		"a name": {func(s *inspecttest.Stored) {
			a, b := dead+".up_proj.weight", dead+".gate_proj.weight"
			s.Data[a], s.Data[b] = s.Data[b], s.Data[a]
		}, false},
	} {
		s := base()
		c.change(s)
		assert.Equal(t, c.same, *hashOf(t, s.Weights()).Model == want, name)
	}
	zero := base()
	zero.Put("model.norm.weight", 0, 0)
	minus := base()
	minus.Put("model.norm.weight", 0, 0x8000)
	assert.NotEqual(t, hashOf(t, zero.Weights()).Model, hashOf(t, minus.Weights()).Model)
	for _, nan := range []uint16{0x7fc0, 0xff81, 0xffff} {
		x, y := base(), base()
		x.Put(normal, 0, nan)
		y.Put(normal, 0, 0x7fff)
		assert.Equal(t, hashOf(t, x.Weights()).Model, hashOf(t, y.Weights()).Model)
	}
}

// TestHashErrors: what has no values, or cannot be read, is one error; never a hash.
func TestHashErrors(t *testing.T) {
	tensors := hostile()
	delete(tensors, "fp8_scale_inv")
	s := inspecttest.Only(t, tensors)
	s.Broken["f32"], s.Broken["bf16"] = true, true
	_, err := Hash(t.Context(), s.Weights(), inspect.Selection{}, inspect.ByTensor)
	for _, want := range []string{"tensor fp8: dtype F8_E4M3, but its scales, fp8_scale_inv, are missing",
		"tensor f32: disk on fire", "tensor bf16: disk on fire"} {
		require.ErrorContains(t, err, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Hash(ctx, inspecttest.Fill(t, configtest.Fixture(t, "v1-base/checkpoint")).Weights(), inspect.Selection{},
		inspect.ByTensor)
	require.ErrorIs(t, err, context.Canceled)
}

// TestHashDoesNotDependOnThreads: nor does what is told of.
func TestHashDoesNotDependOnThreads(t *testing.T) {
	s := inspecttest.Only(t, hostile())
	var want *HashReport
	for _, threads := range []int{1, 3, 0} {
		w, last, of := weights128(s), int64(0), int64(0)
		w.Threads, w.Progress = threads, func(done, total int64) { last, of = done, total }
		r := hashOf(t, w)
		if want == nil {
			want = r
		}
		assert.Equal(t, want, r)
		assert.Equal(t, of, last)
	}
	assert.LessOrEqual(t, s.Largest, weights.TileBytes)
}

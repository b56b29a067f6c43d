package verify

import (
	"bytes"
	"encoding/binary"
	"math"
	"runtime"
	"slices"
	"testing"
	"weak"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/pack"
	"dsmoe/verify/verifytest"
)

// TestAttributionKeepsNoValue: the weights of values are known as long as the values, which nothing else keeps.
func TestAttributionKeepsNoValue(t *testing.T) {
	a := newAttribution[model.Activation]()
	kept := a.adding(&model.Activation{Values: make([]float32, 9)}, &model.Weight{Name: "kept"})
	dropped := weak.Make(a.adding(&model.Activation{Values: make([]float32, 9)}, &model.Weight{Name: "dropped"}))
	runtime.GC()
	require.Nil(t, dropped.Value())
	require.Equal(t, []string{"kept"}, a.weights(kept))
}

// TestReadingsKeepNoOperand: what a norm reads is kept until its stage has been compared, and no longer.
func TestReadingsKeepNoOperand(t *testing.T) {
	a := newAttribution[model.Activation]()
	plain := &attributed[model.Activation]{Arithmetic: model.NewPlain(model.Options{}), by: a}
	weight := &model.Weight{Name: "norm", Tensor: tensor.Tensor{DType: tensor.F32, Shape: []int{9}, Data: make([]byte, 36)}}
	x := &model.Activation{Shape: []int{1, 9}, Values: make([]float32, 9)}
	operand := weak.Make(x)
	y := plain.RMSNorm(x, weight, 1e-6)
	x = nil
	runtime.GC()
	require.NotNil(t, operand.Value())
	require.Len(t, a.readings(y), 1)
	a.forget(y)
	runtime.GC()
	require.Nil(t, operand.Value())
}

// TestGoldenIsReadInPieces: a golden tensor of several pieces, the last one shorter, has the numbers of its file.
func TestGoldenIsReadInPieces(t *testing.T) {
	p := &pack.Pack{Dir: t.TempDir(), Manifest: pack.Manifest{Tensors: map[string]pack.Entry{}}}
	want := make([]float32, 3<<18+5)
	x := tensor.Tensor{DType: tensor.F32, Shape: []int{len(want)}}
	for i := range want {
		want[i] = float32(i)
		x.Data = binary.LittleEndian.AppendUint32(x.Data, math.Float32bits(want[i]))
	}
	require.NoError(t, (&verifytest.Recorder{Pack: p}).Keep("long", x))
	got, err := p.Float32s("long")
	require.NoError(t, err)
	require.True(t, slices.Equal(want, got))
	whole, err := p.Tensor("long")
	require.NoError(t, err)
	require.Equal(t, x.Shape, whole.Shape)
	require.True(t, bytes.Equal(x.Data, whole.Data))
}

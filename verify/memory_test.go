package verify

import (
	"runtime"
	"testing"
	"weak"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
)

// TestAttributionKeepsNoValue: the weights of values are known as long as the values, which nothing else keeps.
func TestAttributionKeepsNoValue(t *testing.T) {
	a := newAttribution[model.Activation](nil, nil, nil)
	kept := a.adding(&model.Activation{Values: make([]float32, 9)}, &model.Weight{Name: "kept"})
	dropped := weak.Make(a.adding(&model.Activation{Values: make([]float32, 9)}, &model.Weight{Name: "dropped"}))
	runtime.GC()
	require.Nil(t, dropped.Value())
	require.Equal(t, []string{"kept"}, a.weights(kept))
}

package model_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
)

// unviewed is a source without views, and with room for so many bytes at once.
type unviewed struct {
	memory
	room int64
	most *int64            // that were asked for at once
	in   func(name string) // called with each tensor that is read
}

func (u unviewed) HasView(string) bool { return false }

func (u unviewed) Room(n int64) error {
	*u.most = max(*u.most, n)
	if n > u.room {
		return errors.New("no room")
	}
	return nil
}

func (u unviewed) Tensor(string) (tensor.Tensor, error) {
	return tensor.Tensor{}, errors.New("there are no views")
}

func (u unviewed) ReadAt(name string, dst []byte, offset int64) error {
	u.in(name)
	copy(dst, u.memory[name].Data[offset:])
	return nil
}

// layerBytes is the size of the weights of a layer, routed experts left out.
func layerBytes(c *config.Config, layer int) (n int64) {
	for s := range table.FamilyOf(c).Slots(c) {
		if s.Layer == layer && s.Expert < 0 {
			n += tensor.Info{DType: tensor.BF16, Shape: s.Shape}.Bytes()
		}
	}
	return n
}

// TestOneLayerIsRead: without views a layer's weights are in memory while it runs, and those of a routed expert
// while that runs. Each is read once, an expert that no token chose is not read, and the logits are the same; a layer that
// does not fit is an error that names it.
func TestOneLayerIsRead(t *testing.T) {
	c := configtest.Parse(t, tinyConfig)
	src := synthetic(t, c)
	in := &model.Input{Batch: 1, Seq: 3, InputIDs: []int{1, 2, 3}}
	viewed, err := model.Load(c, src)
	require.NoError(t, err)
	want, err := viewed.Forward(context.Background(), in, model.Options{})
	require.NoError(t, err)

	read, most := map[string]int{}, int64(0)
	u := unviewed{src, 1 << 40, &most, func(name string) { read[name]++ }}
	m, err := model.Load(c, u)
	require.NoError(t, err)
	require.Less(t, len(read), 5, "what is of no layer")
	got, err := m.Forward(context.Background(), in, model.Options{})
	require.NoError(t, err)
	require.Equal(t, want.Values, got.Values)
	used := map[int]bool{}
	for e, expert := range viewed.Model.Layers[1].MoE.Experts {
		used[e] = read[expert.GateProj.Weight.Name] == 1
		require.Equal(t, used[e], read[expert.DownProj.Weight.Name] == 1)
		require.Nil(t, m.Model.Layers[1].MoE.Experts[e].GateProj.Weight.Data, "let go")
	}
	require.Contains(t, slices.Collect(maps.Values(used)), true)
	require.Contains(t, slices.Collect(maps.Values(used)), false)
	for name := range src {
		if !strings.Contains(name, ".experts.") {
			require.Equal(t, 1, read[name], name)
		}
	}
	large := max(layerBytes(c, 0), layerBytes(c, 1))
	require.Equal(t, large, most, "one layer at a time")
	require.Nil(t, m.Model.Layers[1].SelfAttn.QProj.Weight.Data, "let go")

	require.NoError(t, m.Hold(1))
	require.NotNil(t, m.Model.Layers[1].SelfAttn.QProj.Weight.Data)
	require.NotNil(t, m.Model.Layers[1].MoE.Experts[0].GateProj.Weight.Data)
	_, err = m.Forward(context.Background(), in, model.Options{Training: true})
	require.NoError(t, err)
	require.NotNil(t, m.Model.Layers[0].SelfAttn.QProj.Weight.Data, "kept for the gradient")

	u.room = large - 1
	m, err = model.Load(c, u)
	require.NoError(t, err)
	_, err = m.Forward(context.Background(), in, model.Options{})
	require.EqualError(t, err, "no room: layer 0 needs it")
	u.room = 10
	_, err = model.Load(c, u)
	require.ErrorContains(t, err, "tensor model.embed_tokens.weight: no room")
}

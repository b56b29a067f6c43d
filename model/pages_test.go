package model_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
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
	put  *int              // weights that lie aside
}

func (u unviewed) HasView(string) bool { return false }

func (u unviewed) Room(n int64) error {
	reading.Lock()
	defer reading.Unlock()
	*u.most = max(*u.most, n)
	if n > u.room {
		return errors.New("no room")
	}
	return nil
}

func (u unviewed) Aside(data []byte) (view []byte, free func()) {
	*u.put++
	return slices.Clone(data), func() { *u.put-- }
}

func (u unviewed) Tensor(string) (tensor.Tensor, error) {
	return tensor.Tensor{}, errors.New("there are no views")
}

func (u unviewed) ReadAt(name string, dst []byte, offset int64) error {
	reading.Lock()
	defer reading.Unlock()
	u.in(name)
	copy(dst, u.memory[name].Data[offset:])
	return nil
}

// reading is held by a call of unviewed's.
var reading sync.Mutex

// layerBytes is the size of the weights of a layer, routed experts left out.
func layerBytes(c *config.Config, layer int) (n int64) {
	for s := range table.FamilyOf(c).Slots(c) {
		if s.Layer == layer && s.Expert < 0 {
			n += tensor.Info{DType: tensor.BF16, Shape: s.Shape}.Bytes()
		}
	}
	return n
}

// keeping is an arithmetic that needs the weights of products until their layer has run.
type keeping struct{ *model.Plain }

func (k keeping) Linear(x *model.Activation, l *model.Linear) *model.Activation {
	l.Weight.Keep()
	return k.Plain.Linear(x, l)
}

// TestExpertsAreLetGo: when an expert runs, those before it are not in memory; down_proj of one that was routed to lies
// aside until the layer has run if it is needed again, that of a probe does not.
func TestExpertsAreLetGo(t *testing.T) {
	c := configtest.Parse(t, tinyConfig)
	for _, kept := range []bool{false, true} {
		most, put := int64(0), 0
		m, err := model.Load(c, unviewed{synthetic(t, c), 1 << 40, &most, func(string) {}, &put})
		require.NoError(t, err)
		experts, ran := m.Model.Layers[1].MoE.Experts, []int{}
		var a model.Arithmetic[*model.Activation] = model.NewPlain(model.Options{})
		if kept {
			a = keeping{model.NewPlain(model.Options{})}
		}
		in := &model.Input{Batch: 1, Seq: 3, InputIDs: []int{1, 2, 3}}
		net := &model.Network[*model.Activation]{Model: m, Input: in, Arithmetic: a, Trace: watch{stage: func(name string) error {
			var e int
			if fmt.Sscanf(name, "model.layers.1.mlp.experts.%d.", &e); name == fmt.Sprintf("model.layers.1.mlp.experts.%d.output", e) {
				for _, before := range ran {
					require.Nil(t, experts[before].GateProj.Weight.Data)
					require.Equal(t, kept, experts[before].DownProj.Weight.Data != nil)
				}
				if kept {
					require.Equal(t, len(ran), put)
				}
				ran = append(ran, e)
			}
			return nil
		}}}
		_, err = net.Forward(context.Background())
		require.NoError(t, err)
		require.Greater(t, len(ran), 1)
		require.Zero(t, put, "given up when the layer has run")
		require.Nil(t, experts[ran[0]].DownProj.Weight.Data)

		probes := &model.Network[*model.Activation]{Model: m, Input: in, Arithmetic: a,
			Options: model.Options{Probes: map[int]model.Probe{1: {Rows: []int{0}, Experts: []int{0, 1, 2, 3, 4}}}},
			Trace: watch{stage: func(name string) error {
				if name == "model.layers.1.mlp.experts.4.probe.output" && kept {
					require.Equal(t, len(ran), put)
				}
				return nil
			}}}
		_, err = probes.Forward(context.Background())
		require.NoError(t, err)
		require.Zero(t, put)
	}
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

	read, most, put := map[string]int{}, int64(0), 0
	u := unviewed{src, 1 << 40, &most, func(name string) { read[name]++ }, &put}
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
	require.Equal(t, 3*c.MoE.NRoutedExperts, put, "routed experts lie aside")
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

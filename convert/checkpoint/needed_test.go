package checkpoint

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/convert/internal/fixture"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// needs is a Need of these tensors.
func needs(names ...string) Need {
	return func(*config.Config, weights.Headers) (map[string]bool, error) {
		needed := map[string]bool{}
		for _, n := range names {
			needed[n] = true
		}
		return needed, nil
	}
}

// TestOpenPart: a shard that holds nothing needed may be absent; its tensors have names alone, and an error
// to read one says why.
func TestOpenPart(t *testing.T) {
	all, err := Open(sharded)
	require.NoError(t, err)
	defer all.Close()
	names := map[string]tensor.DType{}
	for info := range all.Tensors() {
		names[info.Name] = info.DType
	}
	dir := fixture.Clone(t, sharded)
	fixture.Remove(t, dir, shard3)
	c, err := Opener{}.OpenPart(dir, needs(embed))
	require.NoError(t, err)
	defer c.Close()
	require.Len(t, c.Inventory.Files, 2)
	require.Len(t, c.Inventory.Notes, 1)
	n := 0
	for info := range c.Tensors() {
		if n++; info.DType != tensor.Invalid {
			require.Equal(t, names[info.Name], info.DType)
		}
		require.Contains(t, names, info.Name)
	}
	require.Equal(t, len(names), n)
	_, err = c.Tensor(embed)
	require.NoError(t, err)
	_, err = c.Tensor(lmHead)
	require.EqualError(t, err, dir+": tensor lm_head.weight: is in "+shard3+", which was not read")
	require.EqualError(t, c.ReadAt(lmHead, make([]byte, 2), 0), err.Error())
	require.Positive(t, c.Memory())

	index := "model.safetensors.index.json"
	fixture.Replace(t, dir, index, `"`+embed+`": "`+shard1, `"`+embed+`": "`+shard3)
	_, err = Opener{}.OpenPart(dir, needs("model.layers.0.self_attn.q_proj.weight"))
	require.EqualError(t, err, dir+": "+shard1+": tensor "+embed+": is here, though "+index+" puts it in "+shard3)
	fixture.Replace(t, dir, index, `"`+embed+`": "`+shard3, `"`+embed+`": "`+shard1)

	fixture.Remove(t, dir, shard1)
	_, err = Opener{}.OpenPart(dir, needs(embed, lmHead, "model.layers.0.self_attn.q_proj.weight"))
	require.EqualError(t, err, dir+": 2 problems: "+shard1+": missing, and needed for 2 of its 62 tensors: layer 0, "+embed+
		"; "+shard3+": missing, and needed for 1 of its 62 tensors: lm_head.weight")
}

// TestNeedIsAskedLate: where all shards are there nothing is asked; an error ends the opening, and nil stands
// for all tensors.
func TestNeedIsAskedLate(t *testing.T) {
	broken := func(*config.Config, weights.Headers) (map[string]bool, error) { return nil, errors.New("asked") }
	c, err := Opener{}.OpenPart(sharded, broken)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	dir := fixture.Clone(t, sharded)
	fixture.Remove(t, dir, shard3)
	_, err = Opener{}.OpenPart(dir, broken)
	require.EqualError(t, err, "asked")
	_, err = Opener{}.OpenPart(dir, func(*config.Config, weights.Headers) (map[string]bool, error) { return nil, nil })
	require.ErrorContains(t, err, shard3+": missing, and model.safetensors.index.json names it for 62 tensors")
}

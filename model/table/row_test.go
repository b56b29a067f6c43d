package table_test

import (
	"bytes"
	"iter"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/model/table"
)

// TestKeysAreWhatTheRowsDependOn changes one field of a config after the other: a row's
// condition or shape changes if, and for some config only if, the field's key is among
// those that the row names.
func TestKeysAreWhatTheRowsDependOn(t *testing.T) {
	for _, fixtures := range [][]string{
		{"v1-base", "v1-dense", "v1-top1-noshared", "v1-rope-linear-tied-bias", "v1-freq3-first2"},
		{"v2-lite", "v2-group-yarn"},
		{"v3", "v3-yarn"},
	} {
		rows := rowsOf(table.FamilyOf(configtest.Fixture(t, fixtures[0]+"/checkpoint")))
		seen := map[dependence]bool{}
		for _, name := range fixtures {
			c := configtest.Fixture(t, name+"/checkpoint")
			for _, r := range []config.Reference{config.Remote, config.Native} {
				if c.HasReference(r) {
					as, err := c.As(r)
					require.NoError(t, err)
					dependences(as, rows, seen)
				}
			}
		}
		for _, p := range rows {
			for _, key := range p.Keys() {
				assert.True(t, seen[dependence{p, key}], "%s: %s names %s", fixtures[0], p.Name, key)
				delete(seen, dependence{p, key})
			}
		}
		for d := range seen {
			assert.Fail(t, "a key is not named", "%s: %s depends on %q", fixtures[0], d.row.Name, d.key)
		}
	}
}

// dependence says that a row changes with a field. key is empty if no row names the
// field's.
type dependence struct {
	row *table.Row
	key string
}

// dependences adds the rows that change with a field of c.
func dependences(c *config.Config, rows []*table.Row, seen map[dependence]bool) {
	for key, changed := range variants(c, rows) {
		for _, p := range rows {
			if !slices.Equal(expansion(p, c), expansion(p, changed)) {
				seen[dependence{p, key}] = true
			}
		}
	}
}

// variants yields copies of c with one integer or truth value changed to another that
// the family can have, and its key.
func variants(c *config.Config, rows []*table.Row) iter.Seq2[string, *config.Config] {
	return func(yield func(string, *config.Config) bool) {
		for _, field := range config.Fields() {
			for _, change := range []func(v reflect.Value) bool{increment, double, zero, toggle} {
				changed := *c
				if !change(reflect.ValueOf(&changed).Elem().FieldByIndex(field.Index)) {
					continue
				}
				key := keyOf(c, &changed, rows)
				if string(changed.Value(key)) == "0" || (changed.Attention.KVLoraRank > 0) != (c.Attention.KVLoraRank > 0) ||
					changed.Windowed() != c.Windowed() {
					continue
				}
				if !yield(key, &changed) {
					return
				}
			}
		}
	}
}

func increment(v reflect.Value) bool {
	if v.CanInt() {
		v.SetInt(v.Int() + 1)
	}
	return v.CanInt()
}

func double(v reflect.Value) bool {
	if v.CanInt() {
		v.SetInt(v.Int() * 2)
	}
	return v.CanInt()
}

// zero is null to an optional integer; to others it is not a value.
func zero(v reflect.Value) bool {
	if v.CanInt() {
		v.SetInt(0)
	}
	return v.CanInt()
}

func toggle(v reflect.Value) bool {
	if v.Kind() != reflect.Bool {
		return false
	}
	v.SetBool(!v.Bool())
	return true
}

// keyOf finds the key, of those that rows name, under which two configs differ.
func keyOf(a, b *config.Config, rows []*table.Row) string {
	for _, p := range rows {
		for _, key := range p.Keys() {
			if !bytes.Equal(a.Value(key), b.Value(key)) {
				return key
			}
		}
	}
	return ""
}

func rowsOf(f *table.Family) (rows []*table.Row) {
	for _, list := range [][]table.Row{f.Rows, f.MTP} {
		for i := range list {
			rows = append(rows, &list[i])
		}
	}
	return rows
}

// expansion is all that a config says of a row: in which layers it is, and its shape.
func expansion(p *table.Row, c *config.Config) (n []int) {
	for l := range 12 {
		if p.When != nil && p.When.Holds(c, l) {
			n = append(n, l)
		}
	}
	for _, d := range p.Shape {
		n = append(n, -d.Size(c, -1))
	}
	return n
}

// TestStageModule: the stages that one weight gives.
func TestStageModule(t *testing.T) {
	v1, v3 := table.FamilyOf(configtest.Fixture(t, "v1-base/checkpoint")), table.FamilyOf(configtest.Fixture(t, "v3/checkpoint"))
	for stage, want := range map[string]table.Module{
		"self_attn.k_proj.output": table.Attention, "mlp.gate.logits": table.Router, "input_layernorm.output": table.Norms,
		"model.embed_tokens.output": table.Embedding, "lm_head.output": table.Head,
		"mlp.output": "", "output": "", "self_attn.o_proj.input": "", "mlp.gate.topk_weight": "", "self_attn.kv_b_proj.output": "",
	} {
		require.Equal(t, want, v1.StageModule(stage), stage)
	}
	require.Equal(t, table.Attention, v3.StageModule("self_attn.kv_b_proj.output"))
	require.Equal(t, table.Norms, v3.StageModule("self_attn.q_a_layernorm.output"))
}

// TestSlotsCanBeLeft: a loop over them ends where its body says, in every part of the table.
func TestSlotsCanBeLeft(t *testing.T) {
	c := configtest.Fixture(t, "v1-base/checkpoint")
	all := slices.Collect(table.FamilyOf(c).Slots(c))
	for n := range all {
		var seen []string
		for s := range table.FamilyOf(c).Slots(c) {
			if seen = append(seen, s.Name); len(seen) == n+1 {
				break
			}
		}
		require.Equal(t, all[n].Name, seen[n])
	}
}

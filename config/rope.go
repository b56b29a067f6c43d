package config

// Two spellings of the rotary embedding: rope_theta and rope_scaling as
// transformers 4 writes them, and rope_parameters as transformers 5 does.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// readRopeScaling reads null or an object. For the first DeepSeekMoE that has exactly
// type and factor: the rule of DeepseekConfig._rope_scaling_validation. transformers 5 makes rope_parameters of it, and
// so it may have theta in other families, and "default" as its type then.
func readRopeScaling(d *decoding, key string, value jsontext.Value) {
	if d.rope.keys == nil {
		d.readScaling(key, value)
		return
	}
	d.adoptRotation(key, d.readScaling(key, value, append(slices.Clone(d.rope.others), "rope_theta")...))
}

// readScaling reads null or an object that may have other keys, too, and returns its members. A scaling "default" is
// none if there are such keys.
func (d *decoding) readScaling(key string, value jsontext.Value, others ...string) map[string]jsontext.Value {
	d.config.RoPE.RopeScaling = nil
	if value.Kind() == 'n' {
		return nil
	}
	typeKeys := []string{"type"}
	if d.rope.keys != nil {
		typeKeys = append(typeKeys, "rope_type")
	}
	o, ok := d.object(key, value, slices.Concat(typeKeys, []string{"factor"}, d.rope.keys, others)...)
	if !ok {
		return nil
	}
	typeKey := "type"
	if _, ok := o[typeKey]; !ok && len(typeKeys) > 1 {
		typeKey = "rope_type"
	}
	if others == nil || show(o[typeKey]) != `"default"` {
		d.config.RoPE.RopeScaling = d.ropeScaling(key, typeKey, o)
	}
	return o
}

// ropeScaling reads the type of a scaling, under the name typeKey, its factor, and the numbers of "yarn". The result
// counts only if nothing failed.
func (d *decoding) ropeScaling(key, typeKey string, o map[string]jsontext.Value) *RopeScaling {
	s := &RopeScaling{}
	d.part(key, typeKey, o, func(v jsontext.Value) (err error) {
		s.Type, err = parseOneOf(v, slices.Concat(d.rope.types, slices.Sorted(maps.Keys(d.rope.called)))...)
		s.Type = cmp.Or(d.rope.called[s.Type], s.Type)
		return err
	})
	d.part(key, "factor", o, func(v jsontext.Value) (err error) {
		s.Factor, err = d.rope.number(v, aboveOne)
		return err
	})
	if d.rope.keys == nil {
		return s
	}
	d.part(key, "original_max_position_embeddings", o, func(v jsontext.Value) (err error) {
		s.OriginalMaxPositionEmbeddings, err = parseInteger(v, 1, maxDim)
		return err
	})
	for _, x := range yarnNumbers {
		number := x.of(s)
		*number = x.missing
		if _, ok := o[x.key]; ok {
			d.part(key, x.key, o, func(v jsontext.Value) (err error) {
				*number, err = parseNumber(v, x.fits)
				return err
			})
		}
	}
	return s
}

// yarnForm is the rope_scaling of DeepSeek-V2 and later. Its numbers may be written
// as integers.
var yarnForm = &ropeForm{
	types:  []string{"yarn"},
	keys:   []string{"original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"},
	number: parseNumber,
}

// yarnNumbers are the numbers of "yarn" that may be absent.
var yarnNumbers = []struct {
	key     string
	of      func(s *RopeScaling) *float64
	missing float64
	fits    bound
}{
	{"beta_fast", func(s *RopeScaling) *float64 { return &s.BetaFast }, 32, positive},
	{"beta_slow", func(s *RopeScaling) *float64 { return &s.BetaSlow }, 1, positive},
	{"mscale", func(s *RopeScaling) *float64 { return &s.MScale }, 0, notNegative},
	{"mscale_all_dim", func(s *RopeScaling) *float64 { return &s.MScaleAllDim }, 0, notNegative},
}

// readRopeParameters reads transformers 5's object. It comes after rope_theta and
// rope_scaling in the table and must agree with those that are present.
// Keys that could change the rotation in a way unknown to the reference are refused.
func readRopeParameters(d *decoding, key string, value jsontext.Value) {
	o, ok := d.object(key, value, slices.Concat([]string{"rope_type", "type", "rope_theta", "factor"}, d.rope.keys,
		d.rope.others)...)
	if ok {
		d.adoptRotation(key, o)
		d.adoptScaling(key, o, &d.config.RoPE.RopeScaling)
	}
}

// ropeShare is the key of the share of a head's channels that RoPE rotates.
const ropeShare = "partial_rotary_factor"

// rotated returns how many of a head's channels a share of them is, as Python's int rounds it.
func rotated(head int, share float64) int { return int(float64(head) * min(share, 2)) }

// adoptRotation takes the partial_rotary_factor and the rope_theta of an object unless a key before it says another one.
func (d *decoding) adoptRotation(key string, o map[string]jsontext.Value) {
	if raw, said := o[ropeShare]; said && d.rope.others != nil {
		share, err := parseNumber(raw, positive)
		if old := d.config.RoPE.RotaryShare; err == nil && d.hasValid(ropeShare) && d.values[ropeShare].Kind() != 'n' &&
			share != old {
			err = fmt.Errorf("%v disagrees with %s %v", share, ropeShare, old)
		}
		store(d, key+"."+ropeShare, &d.config.RoPE.RotaryShare, share, err)
	}
	raw, said := o["rope_theta"]
	if !said {
		return
	}
	theta, err := parseNumber(raw, positive)
	if d.thetaKey == "" && d.hasValid("rope_theta") {
		d.thetaKey = "rope_theta"
	}
	if old := d.config.RoPE.RopeTheta; err == nil && d.thetaKey != "" && theta != old {
		err = fmt.Errorf("%v disagrees with %s %v", theta, d.thetaKey, old)
	}
	d.thetaKey = key + ".rope_theta"
	store(d, d.thetaKey, &d.config.RoPE.RopeTheta, theta, err)
}

// adoptScaling takes the scaling of an object unless rope_scaling says another one, and reports whether it did. Older
// releases write type for rope_type, or both. "default", or no type at all, means no scaling.
func (d *decoding) adoptScaling(key string, o map[string]jsontext.Value, dst **RopeScaling) bool {
	found, typeKey := len(d.problems), "rope_type"
	if _, ok := o[typeKey]; !ok {
		typeKey = "type"
	}
	if alias, ok := o["type"]; ok && show(alias) != show(o[typeKey]) {
		d.fail(key+".type", fmt.Errorf("%s disagrees with rope_type %s", show(alias), show(o[typeKey])))
	}
	var s *RopeScaling
	if name, ok := o[typeKey]; ok && show(name) != `"default"` {
		s = d.ropeScaling(key, typeKey, o)
	} else if _, ok := o["factor"]; ok {
		d.fail(key+".factor", fmt.Errorf("a factor needs rope_type %q", d.rope.types[0]))
	}
	switch old := *dst; {
	case len(d.problems) > found:
		return false
	case d.hasValid("rope_scaling") && !s.equal(old):
		d.fail(key, fmt.Errorf("%s disagrees with rope_scaling %s", s, old))
		return false
	}
	*dst = s
	return true
}

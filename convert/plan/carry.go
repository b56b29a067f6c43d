package plan

// The files of a checkpoint that hold no weights: which go along, and what config.json
// says then.

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"dsmoe/config"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/digest"
	"dsmoe/model"
	"dsmoe/model/tensor"
)

// others plans the files without weights.
func (c *conversion) others() error {
	raw, err := c.src.ConfigText()
	if err != nil {
		return err
	}
	edited, err := editDocument(raw, c.configEdits(raw))
	if err != nil {
		return err
	}
	written, err := config.Parse(bytes.NewReader(edited))
	if err != nil {
		return fmt.Errorf("%s as it would be written: %w", checkpoint.ConfigName, err)
	}
	c.compareWith(written)
	if err := c.carry(); err != nil {
		return err
	}
	c.plan.describe(edited)
	return nil
}

// carry finds the files that go along: those in the checkpoint's directory itself
// that are neither hidden, nor weights of any format, nor an index or manifest of
// weights. Nothing goes along with a single weight file.
func (c *conversion) carry() error {
	if stat, err := os.Stat(c.src.Path); err != nil || !stat.IsDir() {
		return err
	}
	entries, err := os.ReadDir(c.src.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		if c.isReplaced(name) {
			continue
		}
		stat, err := os.Stat(filepath.Join(c.src.Dir, name))
		if err != nil || !stat.Mode().IsRegular() || strings.HasPrefix(name, ".") || checkpoint.IsWeights(name) {
			c.plan.Left = append(c.plan.Left, name)
			continue
		}
		hash, size, err := c.hashOther(name)
		if err != nil {
			return err
		}
		c.plan.Others = append(c.plan.Others, Other{Name: name, Size: size, Hash: hash, Carried: true})
	}
	return nil
}

// isReplaced says whether a file is read, and the output has its own.
func (c *conversion) isReplaced(name string) bool {
	return name == checkpoint.ConfigName || name == ManifestName || checkpoint.IsIndex(name) ||
		slices.ContainsFunc(c.src.Inventory.Files, func(f checkpoint.FileInfo) bool { return f.Name == name })
}

// hashOther hashes a file of the source that holds no weights.
func (c *conversion) hashOther(name string) (hash string, size int64, err error) {
	f, err := c.src.OpenOther(name)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	return digest.Reader(f)
}

// configEdits are the changes that keep config.json true.
func (c *conversion) configEdits(raw []byte) (edits []edit) {
	members, _ := documentMembers(raw) // the config was parsed
	values := map[string]string{}
	for _, m := range members {
		values[m.key] = string(raw[m.value:m.end])
	}
	set := func(key, value string) {
		if old, ok := values[key]; ok && old != value {
			edits = append(edits, edit{key, []byte(value)})
		}
	}
	if c.o.DType != tensor.Invalid {
		name := strconv.Quote(model.TorchName(c.o.DType))
		if values["torch_dtype"] == "" && values["dtype"] == "" {
			edits = append(edits, edit{"torch_dtype", []byte(name)})
		}
		set("torch_dtype", name)
		set("dtype", name)
		if _, ok := values["quantization_config"]; ok {
			edits = append(edits, edit{"quantization_config", nil})
		}
	}
	return append(edits, c.layerEdits()...)
}

// layerEdits are the changes to the numbers of layers. A key that is not there has a
// default, so it is added.
func (c *conversion) layerEdits() (edits []edit) {
	have := c.src.Config
	put := func(key string, n int) { edits = append(edits, edit{key, []byte(strconv.Itoa(n))}) }
	if n, ok := c.o.Layers.prefix(); ok && n < have.NumHiddenLayers {
		put("num_hidden_layers", n)
	} else if len(c.o.Layers) > 0 && !ok {
		c.note("the layers kept are not the first ones: they keep their numbers, and config.json its number of layers")
	}
	f := model.FamilyOf(have)
	absent := f.AbsentMTP(have, c.writes)
	filtered := c.o.NoMTP || len(c.o.Layers) > 0 || len(absent) > len(f.AbsentMTP(have, c.set.Has))
	n := have.NumNextNPredictLayers - len(absent)
	if filtered && len(absent) > 0 && absent[0] == have.NumHiddenLayers+n {
		put("num_nextn_predict_layers", n)
	}
	return edits
}

package plan

// The files of a checkpoint that hold no weights: which go along, and what config.json
// says then.

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"dsmoe/config"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/format"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// others plans the files without weights.
func (c *conversion) others() error {
	if err := c.rewrite(); err != nil {
		return err
	}
	if err := c.carry(); err != nil {
		return err
	}
	c.plan.describe(c.text)
	return nil
}

// rewrite makes the config of the output, and counts what that implies and is not there.
func (c *conversion) rewrite() error {
	raw, err := c.src.ConfigText()
	if err != nil {
		return err
	}
	if c.text, err = editDocument(raw, c.configEdits(raw)); err != nil {
		return err
	}
	if c.written, err = config.Parse(bytes.NewReader(c.text)); err != nil {
		return fmt.Errorf("%s as it would be written: %w", checkpoint.ConfigName, err)
	}
	c.compareWith(c.written)
	return nil
}

// carry finds the files that go along: those in the checkpoint's directory itself that are
// neither hidden, nor weights of any format, nor an index or manifest of weights, nor of an
// adapter. Nothing goes along with a single weight file. A file that cannot go along as it
// should is a problem.
func (c *conversion) carry() error {
	entries, err := os.ReadDir(c.src.Dir)
	if err != nil {
		return err
	}
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool { return c.isReplaced(e.Name()) })
	c.noteMetadata()
	if c.src.Alone {
		if len(entries) > 0 {
			c.note("only %s is converted: what lies beside it, such as a tokenizer, does not go along", text.Quote(filepath.Base(c.src.Path)))
		}
		return nil
	}
	var adapter []string
	for _, e := range entries {
		name := e.Name()
		stat, err := os.Stat(filepath.Join(c.src.Dir, name))
		switch {
		case checkpoint.IsAdapter(name):
			adapter = append(adapter, text.Quote(name))
			fallthrough
		case strings.HasPrefix(name, "."), checkpoint.IsWeights(name), checkpoint.IsIndex(name), err == nil && !stat.Mode().IsRegular():
			c.plan.Left = append(c.plan.Left, name)
		default:
			f, err := c.carried(name)
			if err != nil {
				c.problems = append(c.problems, checkpoint.ProblemsOf(name, err)...)
			}
			c.plan.Others = append(c.plan.Others, f)
		}
	}
	if adapter != nil {
		c.note("%s stay behind: an adapter is made for the weights as they were; merge it before converting if it should have effect", strings.Join(adapter, ", "))
	}
	if c.problems != nil {
		return &checkpoint.Error{Path: c.src.Path, Problems: c.problems}
	}
	return nil
}

// isReplaced says whether a file is read, and the output has its own.
func (c *conversion) isReplaced(name string) bool {
	index := c.src.Inventory.Index
	return name == checkpoint.ConfigName || name == ManifestName || index != nil && name == index.File ||
		slices.ContainsFunc(c.src.Inventory.Files, func(f checkpoint.FileInfo) bool { return f.Name == name })
}

// carried plans a file that goes along. It is read when it is copied; only its first bytes
// are looked at here.
func (c *conversion) carried(name string) (Other, error) {
	if !utf8.ValidString(name) {
		return Other{}, &format.Error{Cause: "its name is not UTF-8, which a manifest cannot hold", Hint: "rename the file, or move it away"}
	}
	if err := c.src.CheckLink(name); err != nil {
		return Other{}, err
	}
	f, err := c.src.OpenOther(name)
	if err != nil {
		return Other{}, err
	}
	defer f.Close()
	stat, err := f.Stat()
	if err != nil {
		return Other{}, err
	}
	head, err := io.ReadAll(io.LimitReader(f, int64(len(format.LFSPointer))))
	if string(head) == format.LFSPointer {
		c.note("%s is a Git LFS pointer and goes along as one: `git lfs pull` in the source's repository downloads the file", text.Quote(name))
	}
	return Other{Name: name, Size: stat.Size(), Carried: true, ModTime: stat.ModTime()}, err
}

// noteMetadata names the texts in the headers of weight files that the output does not have.
func (c *conversion) noteMetadata() {
	lost := map[string]bool{}
	for _, f := range c.src.Inventory.Files {
		for key, value := range f.Metadata {
			if key != "format" || value != "pt" {
				lost[text.Quote(key)] = true
			}
		}
	}
	if len(lost) > 0 {
		const most = 10
		keys := slices.Sorted(maps.Keys(lost))
		if more := len(keys) - most; more > 0 {
			keys = append(keys[:most], fmt.Sprintf("and %d more", more))
		}
		c.note("__metadata__ of the weight files is not carried over: %s", strings.Join(keys, ", "))
	}
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
		name := strconv.Quote(table.TorchName(c.o.DType))
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
	if n, ok := c.o.Layers.Prefix(); ok && n < have.NumHiddenLayers {
		put("num_hidden_layers", n)
	} else if len(c.o.Layers) > 0 && !ok {
		c.note("the layers kept are not the first ones: they keep their numbers, and config.json its number of layers")
	}
	f := table.FamilyOf(have)
	absent := f.AbsentMTP(have, c.writes)
	filtered := c.o.NoMTP || len(c.o.Layers) > 0 || len(absent) > len(f.AbsentMTP(have, c.set.Has))
	n := have.NumNextNPredictLayers - len(absent)
	if filtered && len(absent) > 0 && absent[0] == have.NumHiddenLayers+n {
		put("num_nextn_predict_layers", n)
	}
	return edits
}

package checkpoint

// The config of a checkpoint as it is stored.

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/config"
	"dsmoe/convert/format"
	"dsmoe/convert/source"
	"dsmoe/text/problem"
)

// ReadConfig reads the config.json at path, and returns its text too. Its error is a *problem.Error, with all
// fields that are wrong.
func ReadConfig(path string) (*config.Config, []byte, error) {
	return computable(source.Disk(filepath.Dir(path)), filepath.Base(path))
}

// computable reads a config, and refuses that of a model that nothing is computed with.
func computable(dir source.Dir, name string) (*config.Config, []byte, error) {
	c, document, err := readConfig(dir, name)
	if err == nil && c.Computable() != nil {
		err = problem.In(dir.Path(name), problem.Of("", c.Computable())...)
	}
	return c, document, err
}

func readConfig(dir source.Dir, name string) (*config.Config, []byte, error) {
	f, err := dir.Open(name)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	var document bytes.Buffer
	c, err := config.Parse(io.TeeReader(f, &document))
	if substitute := format.Substitute(dir.Path(name), document.Bytes()); substitute != nil {
		return nil, nil, substitute
	}
	var known *problem.Error
	switch {
	case errors.As(err, &known):
		known.Path = cmp.Or(known.Path, dir.Path(name))
	case err != nil:
		err = problem.System(dir.Path(name), "", err)
	}
	if err == nil && name == ConfigName && !c.Quantization.Announced() {
		c, err = modelOpt(dir, c)
	}
	return c, document.Bytes(), err
}

// ModelOptName is the file that ModelOpt's older checkpoints have in place of quantization_config.
const ModelOptName = "hf_quant_config.json"

// modelOpt returns c with the quantization that ModelOptName in dir announces, if there is such a file.
func modelOpt(dir source.Dir, c *config.Config) (*config.Config, error) {
	f, err := dir.Open(ModelOptName)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	} else if err != nil {
		return nil, err
	}
	defer f.Close()
	var document struct {
		Quantization map[string]jsontext.Value `json:"quantization"`
	}
	if err := json.UnmarshalRead(io.LimitReader(f, config.MaxSize), &document); err != nil {
		return nil, problem.New(dir.Path(ConfigName), fmt.Sprintf("%s beside it: %v", ModelOptName, err), "")
	}
	q := document.Quantization
	if len(q["quant_algo"]) == 0 || q["quant_algo"].Kind() == 'n' { // of keys and values alone
		return c, nil
	}
	q["quant_method"] = jsontext.Value(`"modelopt"`)
	text, _ := json.Marshal(q, json.Deterministic(true)) // it was read
	quantised, err := c.Override(map[string]jsontext.Value{"quantization_config": text})
	if err != nil {
		return nil, problem.New(dir.Path(ConfigName), fmt.Sprintf("with the quantization of %s: %v", ModelOptName, err), "")
	}
	for i := range quantised.Quantization.Unread {
		quantised.Quantization.Unread[i].File = ModelOptName
	}
	return quantised, nil
}

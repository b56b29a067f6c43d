package remote

import (
	"net/url"
	"path"
	"slices"
	"strings"

	"dsmoe/convert/source"
)

// Is reports whether path is the URL of a place that Open opens.
func Is(path string) bool {
	scheme, _, ok := strings.Cut(path, "://")
	return ok && (scheme == "hf" || scheme == "s3" || scheme == "https" || scheme == "http")
}

// Open opens the directory at a URL. file is the name in it that the URL ends in, or "". names are the files that a
// checkpoint may consist of: without a listing only these are found. An error is of type *problem.Error.
func (c *Client) Open(path string, isFile func(name string) bool, names []string) (source.Dir, string, error) {
	d, file, err := c.open(path, isFile, names)
	if err != nil {
		return nil, "", about(Name(path), err)
	}
	return d, file, nil
}

func (c *Client) open(at string, isFile func(name string) bool, names []string) (source.Dir, string, error) {
	var o origin
	var below, file string
	var err error
	switch hidden, ok := c.secrets.Load(at); {
	case strings.HasPrefix(at, "hf://"):
		o, below, err = openHub(c, at)
	case strings.HasPrefix(at, "s3://"):
		o, below, err = openBucket(c, at)
	default:
		if ok {
			at = hidden.(string)
		}
		base, invalid := url.Parse(at)
		if invalid != nil || base.Host == "" {
			return nil, "", final("is not the URL of a directory")
		}
		o, below = &web{base: base, names: names}, base.Path
	}
	if err != nil {
		return nil, "", err
	}
	if isFile(path.Base(below)) {
		below, file = path.Split(below)
	}
	if w, ok := o.(*web); ok {
		w.base.Path, w.base.RawPath = strings.TrimSuffix(below, "/")+"/", ""
		if below = ""; file != "" {
			w.names = append(slices.Clone(names), file)
		}
	}
	d, err := newDir(c, o, below)
	if err == nil && file != "" {
		_, err = d.file(file)
	}
	if err != nil {
		return nil, "", err
	}
	return d, file, nil
}

// Hide returns Name(path) of a web server's URL, and has Open read what path gives access to.
func (c *Client) Hide(path string) string {
	if !strings.HasPrefix(path, "http") {
		return path
	}
	name := Name(path)
	if name != path {
		c.secrets.Store(name, path)
	}
	return name
}

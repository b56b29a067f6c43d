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

// Open opens the directory at a URL with the Default client. file is the name in it that the URL ends in; ""
// for the directory itself. names are the files that a checkpoint may consist of: without a listing only
// these are found. An error is of type *problem.Error.
func Open(path string, isFile func(name string) bool, names []string) (d source.Dir, file string, err error) {
	d, file, err = Default.open(path, isFile, names)
	if err != nil {
		return nil, "", about(Name(path), err)
	}
	return d, file, nil
}

func (c *Client) open(url string, isFile func(name string) bool, names []string) (source.Dir, string, error) {
	o, below, err := c.originOf(url, names)
	if err != nil {
		return nil, "", err
	}
	file := ""
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

func (c *Client) originOf(path string, names []string) (o origin, below string, err error) {
	if strings.HasPrefix(path, "hf://") {
		return openHub(c, path)
	}
	if strings.HasPrefix(path, "s3://") {
		return openBucket(c, path)
	}
	if hidden, ok := c.secrets.Load(path); ok {
		path = hidden.(string)
	}
	u, err := url.Parse(path)
	if err != nil || u.Host == "" {
		return nil, "", final("is not the URL of a directory")
	}
	return &web{base: u, names: names}, u.Path, nil
}

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

// Open opens the directory at a URL. last is the name of the file that the URL ends in, or "". names are the files that
// a checkpoint may consist of: without a listing only these are found. An error is of type *problem.Error.
func (c *Client) Open(at string, isFile func(name string) bool, names []string) (_ source.Dir, last string, err error) {
	defer func() { err = about(Name(at), err) }()
	var o origin
	var below string
	switch {
	case strings.HasPrefix(at, "hf://"):
		o, below, err = openHub(c, at)
	case strings.HasPrefix(at, "s3://"):
		o, below, err = openBucket(c, at)
	default:
		if hidden, ok := c.secrets.Load(at); ok {
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
		below, last = path.Split(below)
	}
	if w, ok := o.(*web); ok {
		w.base.Path, w.base.RawPath = strings.TrimSuffix(below, "/")+"/", ""
		if below = ""; last != "" {
			w.names = append(slices.Clone(names), last)
		}
	}
	d := &dir{c: c, o: o, files: map[string]*file{}}
	if below = strings.Trim(below, "/"); below != "" {
		d.below = below + "/"
	}
	listed, all, err := o.list(c, d.below)
	if err != nil {
		return nil, "", about(o.path(""), err)
	}
	d.all = all
	d.take(listed)
	if last != "" {
		if _, err = d.file(last); err != nil {
			return nil, "", err
		}
	}
	return d, last, nil
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

package remote

import (
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"dsmoe/convert/source"
)

// Is reports whether path is a URL. Open refuses schemes that it does not know.
func Is(path string) bool {
	scheme, _, ok := strings.Cut(path, "://")
	return ok && scheme != "" && strings.Trim(strings.ToLower(scheme), "abcdefghijklmnopqrstuvwxyz0123456789+-.") == ""
}

// HubHosts are the names of the hub's server, whose pages are no directories.
var HubHosts = []string{"huggingface.co", "www.huggingface.co", "hf.co"}

// hubPage splits the path of a model's page: /ORG/NAME[/tree/REVISION].
var hubPage = regexp.MustCompile(`^/([\w.-]+/[\w.-]+)(?:/(?:tree/([^/]+))?)?/?$`)

// Open opens the directory at a URL. last is the name of the file that the URL ends in, or "". names are the files that
// a checkpoint may consist of: without a listing only these are found. An error is of type *problem.Error.
func (c *Client) Open(at string, isFile func(name string) bool, names []string) (_ source.Dir, last string, err error) {
	defer func() { err = about(Name(at), err) }()
	var o origin
	var below string
	switch scheme, rest, _ := strings.Cut(at, "://"); {
	case scheme == "hf":
		o, below, err = openHub(c, at)
	case scheme == "s3":
		o, below, err = openBucket(c, at)
	case scheme == "file":
		return nil, "", &failure{cause: "is a file of this disk", hint: "leave file:// out: " + rest, final: true}
	case scheme != "https" && scheme != "http":
		return nil, "", &failure{cause: scheme + ":// is no scheme that dsmoe knows", final: true,
			hint: "it knows hf://ORG/NAME, s3://BUCKET/PREFIX, https://HOST/DIR/ and paths on the disk"}
	default:
		if hidden, ok := c.secrets.Load(at); ok {
			at = hidden.(string)
		}
		base, invalid := url.Parse(at)
		if invalid != nil || base.Host == "" {
			return nil, "", final("is not the URL of a directory")
		}
		if m := hubPage.FindStringSubmatch(base.Path); m != nil && slices.Contains(HubHosts, base.Host) {
			model := "hf://" + m[1]
			if m[2] != "" {
				model += "@" + m[2]
			}
			return nil, "", &failure{cause: "is a page of the hub", hint: model + " is the model itself", final: true}
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
	if !strings.HasPrefix(strings.ToLower(path), "http") {
		return path
	}
	name := Name(path)
	if name != path {
		c.secrets.Store(name, path)
	}
	return name
}

package remote

// Directories of web servers.

import (
	"context"
	"errors"
	"html"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
)

// web is a directory of a web server.
type web struct {
	base  *url.URL // its path ends in a slash; its query, which may be a signature, goes with every request
	names []string // files that are looked for if the server does not list the directory
}

func (o *web) path(file string) string {
	u := *o.base
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return strings.TrimSuffix(u.String(), "/") + strings.TrimSuffix("/"+file, "/")
}

// href finds the links of a page.
var href = regexp.MustCompile(`(?i)<a\s[^>]*href\s*=\s*["']?([^"'\s>]+)`)

// list takes the files that the directory's page links to, as web servers make it. Without such a page it
// looks for the files that a checkpoint may have.
func (o *web) list(c *Client, _ string) (list []Entry, all bool, err error) {
	page, _, err := c.document(o.path(""),
		func(ctx context.Context) (*http.Request, error) { return o.request(ctx, "") }, explainStatus)
	var f *failure
	if err != nil && !(errors.As(err, &f) && f.code != 0 && f.final) {
		return nil, false, err
	}
	var linked []string
	for _, m := range href.FindAllSubmatch(page, maxFiles) {
		u, err := o.base.Parse(html.UnescapeString(string(m[1])))
		if err == nil && u.Host == o.base.Host && !strings.HasSuffix(u.Path, "/") &&
			strings.TrimSuffix(path.Dir(u.Path), "/")+"/" == o.base.Path {
			linked = append(linked, path.Base(u.Path))
		}
	}
	slices.Sort(linked)
	linked, err = slices.Compact(linked), nil
	if slices.ContainsFunc(linked, func(name string) bool { return slices.Contains(o.names, name) }) {
		for _, name := range linked {
			list = append(list, Entry{name, -1, ""})
		}
		return list, true, nil
	}
	for _, name := range o.names {
		f := file{dir: &dir{c: c, o: o}, name: name, size: -1}
		if missed := f.measure(); missed == nil {
			list = append(list, Entry{name, -1, ""})
		} else if err == nil {
			err = missed
		}
	}
	if list != nil {
		return list, false, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = &failure{cause: "the server has no config.json and no weights there", is: fs.ErrNotExist, final: true}
	}
	return nil, false, err
}

func (o *web) request(ctx context.Context, file string) (*http.Request, error) {
	u := *o.base
	if file != "" {
		u = *o.base.JoinPath((&url.URL{Path: file}).EscapedPath())
	}
	u.RawQuery = o.base.RawQuery
	return http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
}

// fetch requests a range of a file.
func (o *web) fetch(ctx context.Context, c *Client, file string, offset, end int64) (*part, error) {
	r, err := o.request(ctx, file)
	if err != nil {
		return nil, final("its URL cannot be used")
	}
	setRange(r, offset, end)
	resp, err := c.do(r, explainStatus)
	if err != nil {
		return nil, err
	}
	return readPart(resp, offset, end)
}

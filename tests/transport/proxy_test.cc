#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <map>

#include "transport/channel.h"

namespace causeway::transport {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using Variables = std::map<std::string, std::string>;

absl::StatusOr<std::optional<Proxy>> Find(const Variables& variables,
                                          const core::Address& coordinator = {"eu.example.com", 7077}) {
  return FindProxy(coordinator, [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

// "proxy:3128 of https_proxy", "directly", or why not.
std::string Described(const absl::StatusOr<std::optional<Proxy>>& found) {
  if (!found.ok()) return std::string(found.status().message());
  return *found ? (*found)->address.Text() + " of " + (*found)->source : "directly";
}

TEST(FindProxy, TakesThoseOfGrpcAndTheirCapitalLettersAndThatOfAll) {
  for (const char* name :
       {"grpc_proxy", "https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"}) {
    for (const char* value : {"http://proxy:3128", "HTTP://proxy:3128/", "proxy:3128", " proxy:3128 "}) {
      EXPECT_EQ(Described(Find({{name, value}})), std::string("proxy:3128 of ") + name) << value;
    }
  }
  EXPECT_EQ(Described(Find({{"ALL_PROXY", "a:1"}, {"HTTPS_PROXY", "b:2"}, {"https_proxy", ""}})), "b:2 of HTTPS_PROXY");
  EXPECT_EQ(Described(Find({{"http_proxy", "http://[fd00::1]:3128"}})), "[fd00::1]:3128 of http_proxy");
}

TEST(FindProxy, RefusesWhereThereIsNone) {
  for (const Variables& variables : {Variables(), Variables{{"https_proxy", ""}}, Variables{{"no_proxy", "*"}}}) {
    EXPECT_EQ(
        Described(Find(variables)),
        "--use_proxy: expected a proxy in https_proxy, http_proxy, all_proxy or grpc_proxy of the environment, got "
        "none of them");
  }
}

TEST(FindProxy, RefusesWhatGrpcCannotUseAndKeepsThePassword) {
  EXPECT_EQ(Described(Find({{"ALL_PROXY", "socks5://me:secret@proxy:1080"}})),
            "--use_proxy: ALL_PROXY: expected an HTTP proxy, http://[USER:PASSWORD@]HOST:PORT, got "
            "'socks5://…@proxy:1080': gRPC cannot use one of socks5://");
  EXPECT_THAT(Described(Find({{"https_proxy", "https://proxy:3128"}})), HasSubstr("speaks no TLS to a proxy"));
  for (const char* value : {"http://proxy", "me:secret@proxy", "http://me:secret@:3128", "http://proxy:x"}) {
    EXPECT_THAT(Described(Find({{"http_proxy", value}})), HasSubstr("http_proxy: expected an HTTP proxy")) << value;
    EXPECT_THAT(Described(Find({{"http_proxy", value}})), Not(HasSubstr("secret"))) << value;
  }
}

TEST(FindProxy, DecodesTheCredentials) {
  const auto credentials = [](const std::string& value) { return (*Find({{"https_proxy", value}}))->credentials; };
  EXPECT_EQ(credentials("http://proxy:1"), "");
  EXPECT_EQ(credentials("http://me:p%40ss%3aw%2Frd@proxy:1"), "me:p@ss:w/rd");
  EXPECT_EQ(credentials("http://me:p@ss@proxy:1"), "me:p@ss") << "the last @ ends them";
  EXPECT_EQ(credentials("me:100%@proxy:1"), "me:100%");
  EXPECT_EQ(ProxyHeader("Aladdin:open sesame"), "Proxy-Authorization:Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
}

TEST(FindProxy, GoesDirectlyToTheHostsOfNoProxy) {
  const auto with = [](const std::string& direct, const core::Address& coordinator = {"eu.example.com", 7077}) {
    return Described(Find({{"https_proxy", "proxy:1"}, {"NO_PROXY", direct}}, coordinator));
  };
  for (const char* direct : {"*", "eu.example.com", "EU.Example.com", ".example.com", "example.com", "*.example.com",
                             "a, b ,example.com", "a b example.com", "eu.example.com:7077"}) {
    EXPECT_EQ(with(direct), "directly") << direct;
  }
  for (const char* direct : {"", ",", ".", "ample.com", "us.example.com", "eu.example.com:80", "eu.example.com.org"}) {
    EXPECT_EQ(with(direct), "proxy:1 of https_proxy") << direct;
  }
  for (const char* direct : {"10.1.2.3", "10.0.0.0/8", "10.1.2.2/31", "0.0.0.0/0"}) {
    EXPECT_EQ(with(direct, {"10.1.2.3", 1}), "directly") << direct;
  }
  for (const char* direct : {"10.1.2.4", "10.2.0.0/16", "10.0.0.0/33", "10.0.0.0/", "fd00::/8"}) {
    EXPECT_EQ(with(direct, {"10.1.2.3", 1}), "proxy:1 of https_proxy") << direct;
  }
  for (const char* direct : {"::1", "[::1]", "[::1]:7077", "::/0"}) {
    EXPECT_EQ(with(direct, {"::1", 7077}), "directly") << direct;
  }
  EXPECT_EQ(Described(Find({{"https_proxy", "proxy:1"}, {"no_proxy", "a"}, {"NO_PROXY", "*"}})),
            "proxy:1 of https_proxy")
      << "lower case first";
}

}  // namespace
}  // namespace causeway::transport

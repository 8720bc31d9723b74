// SPDX-License-Identifier: Apache-2.0
// What C++ programs ask of libstdc++ and libgcc_s: streams, containers, regular expressions, exceptions that
// cross many frames, futures that carry them between threads. Answers with a hash of all results.
#include "commands.h"
#include <future>
#include <iomanip>
#include <map>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#define NOINLINE __attribute__((noinline, noclone))

static NOINLINE size_t throw_from(int depth)
{
	if (depth == 0)
		throw std::runtime_error("from below");
	std::string guard(static_cast<size_t>(depth), 'x');
	return throw_from(depth - 1) + guard.size();
}

static void catch_them(int i, std::ostream &out)
{
	try {
		throw_from(i % 17 + 1);
	} catch (const std::exception &error) {
		out << error.what();
	}
	try {
		out << std::vector<int>(3).at(static_cast<size_t>(i + 3));
	} catch (const std::out_of_range &error) {
		out << error.what();
	}
	try {
		try {
			out << std::stoi("none");
		} catch (...) {
			std::throw_with_nested(std::logic_error("nested"));
		}
	} catch (const std::logic_error &error) {
		out << error.what();
	}
	auto future = std::async(std::launch::async, [i]() -> int {
		if (i % 3 == 0)
			throw std::logic_error("in a thread");
		return i * 2;
	});
	try {
		out << future.get();
	} catch (const std::logic_error &error) {
		out << error.what();
	}
}

static size_t turn(int i)
{
	std::ostringstream out;
	out << std::setprecision(8) << i * 1.7 << " " << std::hex << i << std::boolalpha << (i % 2 == 0);
	std::map<std::string, int> map;
	for (int k = 0; k < 20; k++)
		map[std::to_string(k * i)] = k;
	for (const auto &[name, value] : map)
		out << name << value;
	catch_them(i, out);
	std::istringstream in(out.str());
	double number = 0;
	std::string word;
	in >> number >> word;
	std::smatch match;
	std::string text = out.str();
	if (std::regex_search(text, match, std::regex("([0-9a-f]+)(true|false)")))
		out << match.str(1) << number;
	return std::hash<std::string>{}(out.str());
}

static const char *run_streams(long count)
{
	static std::string answer;
	size_t hash = 0;
	for (int i = 0; i < count; i++)
		hash = hash * 131 + turn(i);
	answer = std::to_string(hash);
	return answer.c_str();
}

int main()
{
	static const struct command commands[] = {{"streams", run_streams}, {nullptr, nullptr}};
	return obey(commands);
}
